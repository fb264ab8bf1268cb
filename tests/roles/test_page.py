"""The commands of docs/machines.md start the processes it names, and each of them may be killed."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer.main

from lightning_core.cli.app import app
from tests.roles.run_processes import ROOT, SCRIPT, RunProcesses

PAGE = ROOT / "docs" / "machines.md"
BLOCK = re.compile(r"```sh\n(.*?)```", re.DOTALL)


def words_of(line: str) -> list[str]:
    """A command of the page, its first word left out; `$STORE` stays as it is."""
    name, *words = shlex.split(line.removesuffix("&"))
    assert name == "agentlightning", line
    return words


def commands(run: RunProcesses, block: str) -> dict[str, subprocess.Popen[bytes]]:
    """The commands of a block as processes, by the name or else the role that they were given."""
    started: dict[str, subprocess.Popen[bytes]] = {}
    known = {"$STORE": run.store, "examples/sql/train.py": str(SCRIPT)}
    for line in block.splitlines():
        words = [known.get(word, word) for word in words_of(line)]
        if words[0] == "train":
            words += ["--folder", str(run.folder)]
        named = words[words.index("--name") + 1] if "--name" in words else words[0]
        started[named] = run.start(*words)
    return started


@pytest.fixture(scope="module")
def blocks() -> list[str]:
    return BLOCK.findall(PAGE.read_text())


def test_every_command_of_the_page_is_one(blocks: list[str]) -> None:
    verbs: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for line in "".join(blocks).splitlines():
        verb, *words = words_of(line)
        verbs[verb].make_context(verb, words)  # refuses what it does not know


def test_all_four_roles_as_processes_with_the_gateway_killed_in_between(
    tmp_path: Path, postgres_url: str, blocks: list[str]
) -> None:
    with RunProcesses(tmp_path, postgres_url) as run:
        played = commands(run, blocks[-1])
        assert list(played) == ["gateway", "one", "two", "train"]
        run.until(run.steps, *played.values())
        seen = len(run.seen)
        played["gateway"].kill()
        played["gateway"].wait()
        played["gateway"] = run.start("gateway", "--store", run.store)
        assert [process.wait() for process in played.values()] == [0, 0, 0, 0], run.said()
        assert len(run.seen) > seen
        run.check(4)
