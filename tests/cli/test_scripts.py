"""Scripts as people write them: with bugs, without a `fit`, and with settings that can't work here."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub import constants

from tests.build import agentlightning

ROOT = Path(__file__).parents[2]
FIT = """\
import lightning_core as lightning


async def solve(task):
    return 1.0


lightning.Trainer(model="tiny", steps=1).fit(solve, train=[{"question": "?"}])
"""
Train = Callable[..., str]


@pytest.fixture
def refused(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., str]:
    """Returns the message of `train` about a script, with these options, when it ends with exit code 1."""
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.chdir(tmp_path)

    signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started the tests may ignore it

    def refused(text: str, *options: object) -> str:
        (tmp_path / "job.py").write_text(text)
        assert agentlightning("train", "job.py", *options) == 1
        return capfd.readouterr().err

    return refused


def test_a_bug_in_a_script_shows_the_users_frames_alone(refused: Train, tmp_path: Path):
    (tmp_path / "its_helper.py").write_text("def parse(text):\n    return int(text)\n")
    told = refused("import its_helper\n\n\nits_helper.parse('seven')\n")
    lines = told.splitlines()
    frames = [line.split('"')[1] for line in lines if line.startswith("  File")]
    assert [Path(name).name for name in frames] == ["job.py", "its_helper.py"]
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == "ValueError: invalid literal for int() with base 10: 'seven'"


@pytest.mark.parametrize(
    "makes", ["openai.OpenAI()", "OpenAIChatModel('gpt-5-mini')"], ids=["OpenAI's client", "Pydantic AI"]
)
def test_a_script_whose_client_wants_a_key_is_told_that_any_value_will_do(
    refused: Train, makes: str, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("pydantic_ai")
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY"):
        monkeypatch.delenv(name, raising=False)
    told = refused(f"import openai\nfrom pydantic_ai.models.openai import OpenAIChatModel\n{makes}\n")
    assert told.splitlines()[-1] == (
        "hint: the app's client has no key; for trained agents any value will do: export OPENAI_API_KEY=none"
    )


def test_a_script_that_is_no_python_shows_its_line(refused: Train):
    told = refused("def solve(task:\n")
    assert "job.py" in told
    assert "SyntaxError" in told
    assert "runpy" not in told


def test_a_script_that_never_fits_is_an_error(refused: Train):
    told = refused("import lightning_core as lightning\n\nlightning.Trainer(steps=1)\n")
    assert "'job.py' ended and never called Trainer(...).fit(...)" in told


@pytest.fixture
def hollow(tmp_path: Path) -> Path:
    """A model's folder that can't be loaded: what is refused before it is loaded never notices."""
    folder = tmp_path / "hollow"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


def test_a_port_that_is_taken_is_refused_before_the_model_is_loaded(refused: Train, hollow: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        told = refused(FIT, "--set", f"model={hollow}", "--set", f"listen=127.0.0.1:{port}")
    assert f"can't listen on 127.0.0.1:{port}" in told
    assert "choose another port" in told
    assert "can't read" in refused(FIT, "--set", f"model={hollow}"), "the model can't be loaded"


def test_a_folder_that_can_t_be_written_is_refused_before_the_model_is_loaded(
    refused: Train, hollow: Path, tmp_path: Path
):
    (tmp_path / "file").write_text("")
    told = refused(FIT, "--set", f"model={hollow}", "--folder", tmp_path / "file" / "run")
    assert f"can't write the run folder '{tmp_path / 'file' / 'run'}'" in told
    assert "choose another" in told
    told = refused(FIT, "--set", f"model={hollow}", "--store", f"sqlite:///{tmp_path}/file/runs.db")
    assert "of store 'runs.db': make it or allow it" in told


def test_a_hub_that_is_away_is_said_at_once(refused: Train, monkeypatch: pytest.MonkeyPatch):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{port}")
    told = refused(FIT, "--set", "model=somebody/some-model")
    assert f"the hub http://127.0.0.1:{port} can't be reached" in told
    assert "hf download somebody/some-model" in told


@pytest.mark.parametrize(
    ("tasks", "words"),
    [
        (
            "train=[lightning.Task(id='a', input={'n': 1}), lightning.Task(id='a', input={'n': 2})]",
            "two train tasks have the id 'a' and different inputs, {'n': 1} and {'n': 2}",
        ),
        ("train=[{'n': 1}], validation=[{'id': 'b', 'n': 1}, {'id': 'b', 'n': 2}]", "two validation tasks"),
    ],
)
def test_one_id_for_two_tasks_is_refused(refused: Train, tasks: str, words: str):
    assert words in refused(FIT.replace('train=[{"question": "?"}]', tasks))


def test_no_steps_and_nothing_to_evaluate_is_refused(refused: Train):
    assert "steps=0 trains nothing" in refused(FIT, "--steps", 0)


def test_validation_tasks_that_are_trained_on_are_told(
    refused: Train, hollow: Path, caplog: pytest.LogCaptureFixture
):
    both = FIT.replace(
        'train=[{"question": "?"}]', "train=[{'n': 1}, {'n': 2}], validation=[{'n': 2}, {'n': 3}]"
    )
    refused(both, "--set", f"model={hollow}")
    assert "1 of 2 validation tasks are training tasks too" in caplog.text


NOISY = """\
import logging

from agents.tracing import trace
from agents.tracing.processors import BackendSpanExporter

for number in range(3):
    BackendSpanExporter(api_key=None).export([trace(f"turn {number}")])
    logging.getLogger("crewai").warning(f"context of {number} tokens")
    logging.getLogger("lightning_core.own").warning("ours")
"""


def test_what_a_framework_warns_of_again_and_again_is_said_once(tmp_path: Path):
    pytest.importorskip("agents")
    (tmp_path / "noisy.py").write_text(NOISY)
    told = subprocess.run(
        [sys.executable, "-m", "lightning_core.cli", "train", "noisy.py"],
        cwd=tmp_path,
        env={
            **{name: value for name, value in os.environ.items() if name != "OPENAI_API_KEY"},
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        },
        capture_output=True,
        text=True,
        timeout=800,
    ).stderr
    assert told.count("WARNING openai.agents: OPENAI_API_KEY is not set, skipping trace export") == 1
    assert "openai.agents logged this 2 more times: OPENAI_API_KEY is not set" in told
    assert told.count("WARNING crewai: context of") == 1
    assert told.count("ours") == 3
