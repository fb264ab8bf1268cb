"""One command improves the prompts of each framework's example, at its own endpoint, and can be killed."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from lightning_core.trainer.summary import Summary

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "lightning_core.cli"]
PROMPTS = {
    "sql": {"write_query": "Write one SQLite query."},
    "calc": {"solver": "Solve the problem. Use the calculator. Reply with the number."},
    "rag": {"researcher": "Search, then reply with Answer: and the name."},
    "crew": {
        "SQL writer": "You are SQL writer. You know SQLite.\nYour personal goal is: Write one SQLite query."
    },
}
"""Among those that are found; CrewAI makes its own of role, goal and backstory."""
FRAMEWORKS = {"sql": "langgraph", "calc": "autogen_agentchat", "rag": "agents", "crew": "crewai"}
BUDGET = 40
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "OPENAI_API_KEY": "none"}

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning"),  # of CrewAI's own fields
    pytest.mark.filterwarnings("ignore:Cannot set an attribute on 'crewai:ImportWarning"),
]


@contextmanager
def served(model: str) -> Iterator[str]:
    """The address of `agentlightning serve`."""
    command = [*COMMAND, "serve", model, "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        try:
            found = next(filter(None, (re.search(r"OPENAI_BASE_URL=(\S+)", line) for line in server.stderr)))
            yield found[1]
        finally:
            server.terminate()


@pytest.mark.parametrize("example", PROMPTS)
def test_the_prompt_of_an_example_is_improved_and_the_run_survives_a_kill(
    example: str, tmp_path: Path
) -> None:
    if find_spec(FRAMEWORKS[example]) is None:
        pytest.skip(f"{FRAMEWORKS[example]} is not installed")
    folder = tmp_path / "run"
    script = [str(ROOT / "examples/improve.py")]
    options = ["--folder", str(folder), "--", example, "--budget", str(BUDGET), "--tasks", "4"]
    with served(policy_of(example, tmp_path)) as url:
        told = {"cwd": tmp_path, "env": {**ENVIRONMENT, "OPENAI_BASE_URL": url}}
        first = subprocess.Popen([*COMMAND, "train", *script, *options], stderr=subprocess.PIPE, **told)  # type: ignore[call-overload]
        with first:
            while first.poll() is None and ended(folder) < 5:  # 4 find the prompts
                time.sleep(0.1)
            assert first.poll() is None, "it ended before it could be killed"
            first.kill()
        command = [*COMMAND, "train", *script, "--resume", *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, **told)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stderr
    summary = Summary.model_validate_json((folder / "summary.json").read_bytes())
    (found,) = summary.searches
    assert found.rollouts <= BUDGET
    assert found.candidates >= 1
    assert PROMPTS[example].items() <= {name: seed for name, (seed, _) in found.prompts.items()}.items()
    assert summary.failures == 0


def policy_of(example: str, folder: Path) -> str:
    """The model that the example's training script begins with."""
    if example == "crew":
        from examples.crew.policy import write_policy

        return str(write_policy(folder))
    return "tiny" if example == "sql" else str(ROOT / "examples" / example / "policy")


def ended(folder: Path) -> int:
    """How many rollouts have ended so far."""
    try:
        with closing(sqlite3.connect(f"file:{folder / 'store.db'}?mode=ro", uri=True)) as store:
            return int(
                store.execute("SELECT COUNT(*) FROM rollouts WHERE status = 'succeeded'").fetchone()[0]
            )
    except sqlite3.OperationalError:  # not there yet
        return 0
