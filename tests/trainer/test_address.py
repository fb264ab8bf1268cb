"""A run stays in the store that it was begun with, whether or not its name is given again."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

import lightning_core as lightning
from lightning_core.cli.runs import show_run
from lightning_core.errors import ConfigError, TrainingError
from lightning_core.records.types import Rollout, Task
from lightning_core.stores.sqlite import SqliteStore


async def solve(task: lightning.Task) -> float:
    return 1.0


def fit(folder: Path, *, steps: int = 0, **settings: object) -> None:
    options: dict[str, object] = {
        "model": "tiny",
        "folder": folder,
        "steps": steps,
        "progress": False,
        **settings,
    }
    lightning.Trainer(**options).fit(solve, train=[{"question": "?"}], validation=[{"question": "!"}])  # type: ignore[arg-type]


def test_a_run_that_is_resumed_without_naming_its_store_stays_there(tmp_path: Path) -> None:
    store, run = f"sqlite:///{tmp_path / 'shared.db'}", tmp_path / "run"
    fit(run, store=store)
    for _ in range(2):
        fit(run, resume=True)
        assert json.loads((run / "run.json").read_bytes())["store"] == store
    assert not (run / "store.db").exists()
    fit(run, resume=True, store=store)
    with pytest.raises(ConfigError, match=r"started with store 'sqlite:.*shared\.db', not 'redis://me@h'"):
        fit(run, resume=True, store="redis://me:secret@h")


def test_a_run_in_a_store_with_a_relative_path_goes_on_and_is_shown_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)
    fit(run, store="sqlite:///runs.db")
    monkeypatch.chdir(elsewhere)
    fit(run, resume=True)
    fit(run, resume=True, store="sqlite:///../runs.db")
    with pytest.raises(ConfigError, match="was started with store"):
        fit(run, resume=True, store="sqlite:///runs.db")
    asyncio.run(show_run(run))
    assert "run run: finished, 0 steps" in capsys.readouterr().out
    assert list(elsewhere.iterdir()) == []


async def test_a_rollout_that_somebody_else_put_under_the_runs_name_is_refused(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'shared.db'}"
    async with SqliteStore(store) as opened:
        stranger = Rollout(id="run-t0-0-0", run_id="other", group_id="g", step=0, task=Task(input={"a": 1}))
        await opened.enqueue([stranger])
    with pytest.raises(TrainingError, match=r"'run-t0-0-0' of run 'run' is in the store already.*'other'"):
        lightning.Trainer(model="tiny", folder=tmp_path / "run", store=store, steps=1, progress=False).fit(
            solve, train=[{"question": "?"}]
        )
