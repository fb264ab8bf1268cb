"""A run that failed before its first update: the same command begins it again, or resumes it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import lightning_core as lightning
from lightning_core.errors import ConfigError, TrainingError, UnknownAgentError
from lightning_core.insight.status import ENDED
from lightning_core.records.types import Run
from lightning_core.stores.base import get_run
from lightning_core.stores.sqlite import SqliteStore
from tests.trainer.watching import PER_STEP, fit, grpo, records, solve

HELD_OUT = [{"question": f"held out {n}"} for n in range(2)]


def read_run(folder: Path) -> Run:
    async def read() -> Run:
        async with SqliteStore(f"sqlite:///{folder / 'store.db'}") as store:
            return await get_run(store, folder.name)

    return asyncio.run(read())


class Broken:
    """An app with a bug, until it is fixed."""

    def __init__(self) -> None:
        self.fixed = False

    async def __call__(self, task: lightning.Task) -> float:
        if not self.fixed:
            raise KeyError("the old bug")
        return await solve(task)


@pytest.mark.parametrize("validation", [HELD_OUT, []])
def test_a_resumed_run_asks_again_for_rollouts_that_all_failed(tmp_path: Path, validation: list[Any]) -> None:
    app = Broken()
    for resume in (False, True):  # twice: the second failure is not the first one's record either
        with pytest.raises(TrainingError, match="the old bug"):
            fit(tmp_path / "run", grpo(), app, steps=1, validation=validation, resume=resume)
    app.fixed = True
    summary = fit(tmp_path / "run", grpo(), app, steps=1, validation=validation, resume=True)
    assert summary.steps == 1
    assert summary.after is None or summary.after.detail["greedy"].failures == 0


def test_without_an_update_the_same_command_begins_again(tmp_path: Path) -> None:
    app = Broken()
    with pytest.raises(TrainingError):
        fit(tmp_path / "run", grpo(), app, steps=1)
    assert "all 8 rollouts failed" in str(read_run(tmp_path / "run").config[ENDED])
    with pytest.raises(ConfigError, match=r"differ from before: seed; .*leave --resume out"):
        fit(tmp_path / "run", grpo(), app, steps=1, resume=True, seed=7)
    app.fixed = True
    assert fit(tmp_path / "run", grpo(), app, steps=1, seed=7).failures == 0
    found = read_run(tmp_path / "run")
    assert found.status == "finished"
    assert ENDED not in found.config
    with pytest.raises(ConfigError, match="already holds a run"):
        fit(tmp_path / "run", grpo(), app, steps=1, seed=7)


def test_a_run_with_updates_is_kept(tmp_path: Path) -> None:
    app, begun = Broken(), 0

    async def breaks_later(task: lightning.Task) -> float:
        nonlocal begun
        begun, app.fixed = begun + 1, begun < PER_STEP
        return await app(task)

    with pytest.raises(TrainingError, match="in step 2"):
        fit(tmp_path / "run", grpo(), breaks_later, steps=2, checkpoint_every=2)
    with pytest.raises(ConfigError, match="already holds a run"):
        fit(tmp_path / "run", grpo(), app, steps=2, checkpoint_every=2)


def test_a_wrong_agent_is_refused_after_the_first_evaluation(tmp_path: Path) -> None:
    with pytest.raises(UnknownAgentError, match="did you mean 'writer'"):
        fit(tmp_path / "run", grpo(), solve, steps=1, agents=["wirter"], validation=HELD_OUT)
    assert not records(tmp_path / "run").rollouts, "no training rollout was begun"
