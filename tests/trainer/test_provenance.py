"""Where a run's numbers come from: kept with the run, added to on resume, and without secrets."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import lightning_core as lightning
from lightning_core.plugins import load_plugins
from lightning_core.stores.sqlite import SqliteStore
from lightning_core.trainer.record import describe_origin, git_state, resumed


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=n", "-c", "user.email=e@x", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "--initial-branch", "trunk")
    (tmp_path / "job.py").write_text("pass\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--message", "begin")
    return tmp_path


def test_git_state_is_commit_branch_and_whether_anything_is_changed(repository):
    clean = {"commit": git(repository, "rev-parse", "HEAD"), "branch": "trunk", "dirty": False}
    assert git_state(repository) == clean
    (repository / "new.py").write_text("pass\n")
    assert git_state(repository) == {**clean, "dirty": True}


def test_without_a_repository_or_without_git_nothing_is_said_of_it(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_state(tmp_path) is None
    monkeypatch.setenv("PATH", "")
    assert git_state(Path(__file__).parent) is None


def test_an_origin_says_all_settings_versions_machine_and_how_it_was_started(monkeypatch):
    monkeypatch.setattr(sys, "orig_argv", ["python", "job.py", "--store", "redis://:pw@h", "--api-key", "pw"])
    monkeypatch.setenv("A_VARIABLE_OF_THE_ENVIRONMENT", "never-told")
    trainer = lightning.Trainer(store="postgresql://me:pw@host/db", seed=7, agents=["writer"])
    origin: Any = describe_origin(trainer, load_plugins([]).list())
    assert origin["settings"]["store"] == "postgresql://***@host/db"
    assert origin["settings"]["agents"] == ["writer"]
    assert origin["settings"].keys() == lightning.Trainer.__dataclass_fields__.keys()
    assert (origin["seed"], origin["settings"]["steps"]) == (7, None)
    assert origin["versions"]["agent-lightning-core"] == lightning.__version__
    assert origin["versions"]["plugin core"] == lightning.__version__
    assert origin["machine"]["cores"] >= 1
    assert origin["machine"]["memory_gb"] > 0
    assert origin["command"] == ["python", "job.py", "--store", "redis://***@h", "--api-key", "***"]
    text = json.dumps(origin)
    assert "pw" not in text
    assert "never-told" not in text


def test_a_resumed_run_keeps_the_first_and_adds_what_is_different():
    first: Any = {"started_at": 1.0, "seed": 0, "machine": {"host": "a", "cores": 2}, "git": None}
    second: Any = {"started_at": 2.0, "seed": 0, "machine": {"host": "b", "cores": 2}, "git": {"commit": "c"}}
    once = resumed(first, second)
    added = {"started_at": 2.0, "changed": {"git.commit": "c", "machine.host": "b"}}
    assert once == {**first, "resumed": [added]}
    twice = resumed(once, {**first, "started_at": 3.0})
    assert twice == {**first, "resumed": [added, {"started_at": 3.0, "changed": {}}]}
    assert resumed({}, first) == first  # begun by a version that noted nothing


def test_a_run_is_opened_with_its_origin_and_resumed_with_the_change(tmp_path):
    async def solve(task: lightning.Task) -> float:
        return 1.0

    def fit(**settings: Any) -> Any:
        backend = lightning.LocalBackend("tiny")
        trainer = lightning.Trainer(
            backend=backend, steps=0, folder=tmp_path / "run", progress=False, **settings
        )
        trainer.fit(solve, train=[{"question": "?"}], validation=[{"question": "!"}])

        async def read() -> Any:
            async with SqliteStore(f"sqlite:///{tmp_path / 'run' / 'store.db'}") as store:
                return (await store.find_run("run")).provenance  # type: ignore[union-attr]

        return asyncio.run(read())

    first = fit()
    assert first["versions"]["torch"]
    assert first["folder"] == str(Path.cwd())
    second = fit(resume=True, timeout=5.0)
    assert {name: second[name] for name in first} == first
    assert second["resumed"][0]["changed"] == {"settings.resume": True, "settings.timeout": 5.0}
