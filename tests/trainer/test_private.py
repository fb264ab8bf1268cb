"""A run's files are its user's alone, and no password is shown to anybody."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightning_core.plugins import load_plugins
from lightning_core.trainer.folder import RunFolder
from lightning_core.trainer.parts import open_store
from tests.stores.redis_server import serving

JOB = Path(__file__).parents[1] / "cli" / "small_job.py"
WORD = "correct-horse"
"""The store's password, and every key that the command and its environment are given."""
KEYS = {"OPENAI_API_KEY": WORD, "LIGHTNING_API_SECRET": WORD * 3, "HF_TOKEN": WORD}
SMALL = ("--steps", "1", "--set", "trackers=tensorboard")


def agentlightning(*arguments: str | Path, umask: int = 0, **environment: str) -> str:
    """Returns the command's output, on both of its streams."""
    done = subprocess.run(
        [sys.executable, "-m", "lightning_core.cli", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        umask=umask,
        env={**os.environ, **KEYS, **environment},
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def open_to_others(folder: Path) -> list[str]:
    """The folder and all that is in it, as far as anybody but the user has rights there."""
    paths = [folder, *sorted(folder.rglob("*"))]
    return [f"{path.name} {path.stat().st_mode & 0o777:o}" for path in paths if path.stat().st_mode & 0o077]


@pytest.mark.parametrize("umask", [0o000, 0o022], ids=["000", "022"])
def test_no_other_user_may_read_anything_of_a_run(umask: int, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "run"
    agentlightning("train", JOB, *SMALL, "--folder", folder, umask=umask)
    names = {path.name for path in folder.rglob("*")}
    assert {"run.json", "store.db", "summary.json", "curve.png", "model.safetensors", "lock"} <= names
    assert any(name.startswith("events.out") for name in names)
    assert open_to_others(folder) == []


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str, str]]:
    """A run in a store with a password: its folder, the store's URL, and what the command said."""
    folder = tmp_path_factory.mktemp("guarded") / "run"
    with serving(requirepass=WORD) as server:
        url = server.url.replace("redis://", f"redis://:{WORD}@")
        given = ("--folder", folder, "--store", url)
        yield folder, url, agentlightning("train", JOB, *SMALL, *given, "--", "--api-key", WORD)


def test_the_password_of_the_store_is_in_no_file_and_in_no_message(guarded: tuple[Path, str, str]) -> None:
    folder, url, said = guarded
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 8
    assert [path for path in files if WORD.encode() in path.read_bytes()] == []
    assert json.loads((folder / "run.json").read_bytes())["store"] == url.replace(f":{WORD}@", "")
    assert WORD not in said
    known = trusted(url)
    shown = agentlightning("show", folder, **known), agentlightning("runs", folder.parent, **known)
    assert "--store" in shown[0]
    assert WORD not in "".join((*shown, asyncio.run(recorded_origin(url))))


def trusted(url: str) -> dict[str, str]:
    """The environment of a person who names the store as their own."""
    return {"REDISCLI_AUTH": WORD, "LIGHTNING_STORE": url.replace(f":{WORD}@", "")}


async def recorded_origin(url: str) -> str:
    async with open_store(url, load_plugins()) as store:
        (run,) = await store.list_runs()
    return json.dumps(run.provenance)


def test_a_run_goes_on_with_the_password_from_the_environment_or_the_command(
    guarded: tuple[Path, str, str],
) -> None:
    folder, url, _ = guarded
    go_on = ("train", JOB, "--resume", "--folder", folder, "--set", "trackers=tensorboard", "--steps")
    agentlightning(*go_on, "2", **trusted(url))
    agentlightning(*go_on, "3", "--store", url)
    assert (folder / "checkpoints" / "step-000003").is_dir()
    with pytest.raises(AssertionError, match=r"refused user or password .* or set REDISCLI_AUTH"):
        agentlightning("show", folder)


def test_a_folder_that_others_may_enter_is_narrowed_if_it_is_a_runs_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    empty, earlier, mixed = (tmp_path / name for name in ("empty", "earlier", "mixed"))
    for folder in (empty, earlier, mixed):
        folder.mkdir()
        folder.chmod(0o755)
    (earlier / "lock").touch(mode=0o600)
    (mixed / "thesis.tex").touch()
    for folder, mode in ((empty, 0o700), (earlier, 0o700), (mixed, 0o755)):
        with RunFolder(folder, resume=False) as run:
            run.write_address("redis://h")
        assert stat.S_IMODE(folder.stat().st_mode) == mode
        assert open_to_others(folder)[mode == 0o755 :] in ([], ["thesis.tex 644"])
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert f"run `chmod 700 {mixed}`" in caplog.text
