"""A run that is killed during an evaluation, before the checkpoint of what it evaluates."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Mapping
from pathlib import Path

import lightning_core as lightning
from lightning_core.records.types import Alert, Status
from lightning_core.stores.sqlite import SqliteStore
from lightning_core.tracing.scope import current_scope
from lightning_core.trackers.base import Beginning
from tests.trainer import versioned


class Notes:
    """A tracker that keeps what it is told of numbers."""

    def __init__(self) -> None:
        self.told: list[tuple[int, str]] = []

    def start(self, beginning: Beginning) -> None:
        self.told.clear()

    def log(self, step: int, values: Mapping[str, float], at: float) -> None:
        self.told.append((step, "evaluation" if "validation/greedy" in values else "step"))

    def alert(self, alert: Alert) -> None:
        """Not looked at."""

    def finish(self, status: str) -> None:
        """Not looked at."""


def fit_two_steps(folder: Path, notes: Notes, *, deadly: bool, resume: bool = False) -> None:
    """Two steps with one checkpoint, after both; if `deadly`, the evaluation between them kills the process
    at once."""

    async def solve(task: lightning.Task) -> float:
        scope = current_scope()
        assert scope is not None
        if deadly and "-e1-" in scope.rollout_id:
            os.kill(os.getpid(), signal.SIGKILL)
        return await versioned.solve(task)

    lightning.Trainer(
        algorithm=lightning.GRPO(group_size=3, tasks_per_step=2),
        backend=lightning.LocalBackend("tiny"),
        steps=2,
        evaluate_every=1,
        checkpoint_every=2,
        trackers=[notes],
        folder=folder,
        resume=resume,
        progress=False,
    ).fit(solve, train=versioned.TASKS[:6], validation=versioned.TASKS[6:])


async def test_it_evaluates_the_weights_that_are_made_again_and_tells_all_of_it(tmp_path: Path) -> None:
    folder, notes = tmp_path / "run", Notes()
    child = multiprocessing.get_context("spawn").Process(
        target=fit_two_steps, args=(folder, notes), kwargs={"deadly": True}
    )
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    fit_two_steps(folder, notes, deadly=False, resume=True)
    async with SqliteStore(f"sqlite:///{folder / 'store.db'}") as store:
        asked = await store.find_rollouts("run", step=1, split="validation")
        done = [rollout.id for rollout in asked if rollout.status is Status.SUCCEEDED]
        calls = await store.get_calls(done)
    assert (len(asked), len(done)) == (8, 4)
    assert {call.policy_version for each in calls.values() for call in each} == {1}
    assert notes.told == [
        (0, "evaluation"), (1, "step"), (1, "evaluation"), (2, "step"), (2, "evaluation"),
    ]  # fmt: skip
