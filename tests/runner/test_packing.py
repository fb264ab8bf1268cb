"""The user's function as bytes: what goes by name, by its script or whole, and what can't go."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import openai
import pytest

from lightning_core.errors import ConfigError
from lightning_core.records.types import Task
from lightning_core.runner.packing import pack
from tests.runner import playing

client = openai.AsyncOpenAI(api_key="none")


def helper() -> Any:
    return client


class App:
    def __init__(self) -> None:
        self.connection: Any = None

    def solve(self, task: Task) -> float:
        return 1.0


def test_a_function_of_a_module_goes_by_its_name() -> None:
    packed = pack(playing.play)
    assert pickle.loads(packed) is playing.play
    assert len(packed) < 100


def test_what_can_t_be_pickled_is_named() -> None:
    held = threading.Lock()

    def locking(task: Task) -> float:
        with held:
            return 1.0

    def asking(task: Task) -> float:
        return float(helper() is client)

    # Functions of this module go by name; a script's go whole.
    asking.__module__ = helper.__module__ = "__main__"
    app = App()
    app.connection = threading.Lock()
    for solve, named in (
        (locking, "its variable 'held' of 'locking', a _thread.lock,"),
        (partial(locking), "its variable 'held' of 'locking', a _thread.lock,"),
        (app.solve, "its attribute 'connection' of 'App'"),
        (asking, "its global 'client' of 'helper', a openai.AsyncOpenAI,"),
    ):
        with pytest.raises(ConfigError, match="move the function and what it uses to a module") as refused:
            pack(solve)
        assert named in str(refused.value)
        assert "workers:" in str(refused.value)


SENDING = """
import threading
from pathlib import Path
from lightning_core.runner.packing import pack

held = threading.Lock()
Path("ran.txt").open("a").write(__name__ + "\\n")

def solve(task):
    with held:
        return 0.5
"""
RECEIVING = "import pickle; print(pickle.loads(open('packed', 'rb').read())(None))"


def python(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={"PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
    )


def test_a_function_of_a_guarded_script_is_had_by_running_it_for_its_definitions(tmp_path: Path) -> None:
    guard = '\nif __name__ == "__main__":\n    Path("packed").write_bytes(pack(solve))\n'
    (tmp_path / "job.py").write_text(SENDING + guard)
    sent = python("job.py", folder=tmp_path)
    assert sent.returncode == 0, sent.stderr
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "packed").rename(tmp_path / "elsewhere" / "packed")
    received = python("-c", RECEIVING, folder=tmp_path / "elsewhere")
    assert received.stdout == "0.5\n", received.stderr
    assert (tmp_path / "ran.txt").read_text() == "__main__\n"
    assert (tmp_path / "elsewhere" / "ran.txt").read_text() == "__mp_main__\n"


def test_a_script_that_trains_outside_its_guard_is_told_so_when_it_is_run_for_its_definitions(
    tmp_path: Path,
) -> None:
    fit = "\nimport lightning_core as lightning\nif __name__ != '__main__': "
    fit += "lightning.Trainer(model='tiny').fit(solve)\n"
    guard = 'if __name__ == "__main__":\n    Path("packed").write_bytes(pack(solve))\n'
    (tmp_path / "job.py").write_text(SENDING + fit + guard)
    sent = python("job.py", folder=tmp_path)
    assert sent.returncode == 0, sent.stderr
    received = python("-c", RECEIVING, folder=tmp_path)
    assert "came to Trainer.fit" in received.stderr


@pytest.mark.parametrize(("file", "module"), [("train.py", "job.train"), ("__main__.py", "job")])
def test_a_function_of_a_module_that_is_run_is_had_by_the_module_s_name(
    tmp_path: Path, file: str, module: str
) -> None:
    guard = '\nif __name__ == "__main__":\n    Path("packed").write_bytes(pack(solve))\n'
    package = tmp_path / "job"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "parts.py").write_text("WORTH = 0.25\n")
    (package / file).write_text(f"from .parts import WORTH\n{SENDING.replace('0.5', 'WORTH')}{guard}")
    sent = python("-m", module, folder=tmp_path)
    assert sent.returncode == 0, sent.stderr
    received = python("-c", RECEIVING, folder=tmp_path)
    assert received.stdout == "0.25\n", received.stderr
    assert (tmp_path / "ran.txt").read_text() == "__main__\n__mp_main__\n"
