"""Rollouts that go on while the update runs: how far ahead they may be, and what is said of it."""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

import lightning_core as lightning
from lightning_core.algorithms.base import Algorithm
from lightning_core.backends.base import Batch
from lightning_core.errors import TrainingError
from lightning_core.records.types import Rollout, Status, Trajectory, Transition
from lightning_core.stores.sqlite import MemoryStore
from lightning_core.tracing.scope import current_scope
from lightning_core.trainer.display import describe_staleness
from lightning_core.trainer.parts import ResolvedPhase
from lightning_core.trainer.plan import RolloutPlan, admitted, make_tasks
from lightning_core.trainer.report import find_evaluation
from lightning_core.trainer.rollouts import withdraw
from lightning_core.trainer.updating import measure_staleness
from tests.trainer.watching import PER_STEP, Records, Watched, fit, grpo, records, solve


def ages(run: Records) -> list[int]:
    """Returns how many versions each call of a trained rollout was behind the update it was used for."""
    versions = {
        step: int(m.values["policy_version"]) - 1
        for step, m in run.metrics.items()
        if "policy_version" in m.values
    }
    return [
        versions[rollout.step] - call.policy_version
        for rollout in run.rollouts
        if rollout.step in versions
        for call in run.calls[rollout.id]
        if call.policy_version is not None
    ]


class Patient(Watched):
    """Makes an update when every rollout that may begin before it has ended, and none other has begun."""

    def __init__(self, staleness: int, steps: int) -> None:
        super().__init__()
        self.staleness, self.steps = staleness, steps
        self.begun: Counter[int] = Counter()
        self.ended: Counter[int] = Counter()
        self.changed = asyncio.Condition()

    async def solve(self, task: lightning.Task) -> float:
        scope = current_scope()
        assert scope is not None
        step = int(scope.rollout_id.split("-t")[1].split("-")[0])
        self.begun[step] += 1
        reward = await solve(task)
        self.ended[step] += 1
        async with self.changed:
            self.changed.notify_all()
        return reward

    async def update(self, batch: Batch, algorithm: Algorithm) -> dict[str, float]:
        due = dict.fromkeys(range(min(batch.step + self.staleness + 1, self.steps)), PER_STEP)
        async with asyncio.timeout(300), self.changed:
            await self.changed.wait_for(lambda: self.ended == due)
        assert self.begun == due
        return await super().update(batch, algorithm)


@pytest.mark.parametrize("staleness", [1, 2])
def test_rollouts_begin_before_the_update_and_are_never_staler_than_allowed(tmp_path: Path, staleness: int):
    backend = Patient(staleness, steps=5)
    summary = fit(tmp_path / "run", grpo(staleness=staleness), backend.solve, backend=backend)
    run = records(tmp_path / "run")
    assert set(ages(run)) == set(range(staleness + 1))
    for step, entry in run.metrics.items():
        assert entry.values["staleness_mean"] == entry.values["staleness_max"] == min(step, staleness)
        later = [r for r in run.rollouts if r.step == step + 1]
        assert all(r.created_at < entry.created_at for r in later)
    assert summary.staleness_max == staleness
    assert summary.staleness_mean == fmean(min(step, staleness) for step in range(5))
    written = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert written["staleness_mean"] == summary.staleness_mean


def test_without_staleness_a_step_begins_when_the_one_before_is_done(tmp_path: Path):
    summary = fit(tmp_path / "run", grpo())
    run = records(tmp_path / "run")
    assert set(ages(run)) == {0}
    for step, entry in run.metrics.items():
        later = [call for r in run.rollouts if r.step > step for call in run.calls[r.id]]
        assert all(call.started_at >= entry.created_at for call in later)
    assert (summary.staleness_mean, summary.staleness_max) == (0, 0)


def test_batches_keep_their_planned_order_whichever_rollouts_end_first(tmp_path: Path):
    backend = Watched()
    fit(tmp_path / "run", grpo(staleness=2), backend=backend)
    planned = {
        step: [r.id for r in records(tmp_path / "run").rollouts if r.step == step] for step in range(5)
    }
    assert all(len(ids) == PER_STEP for ids in planned.values())
    for step, (batch,) in backend.batches.items():
        trained = [trajectory.rollout_id for trajectory in batch]
        assert trained == [i for i in planned[step] if i in set(trained)]


def test_nothing_is_asked_for_beyond_the_last_step_or_the_phase(tmp_path: Path):
    ahead = grpo(staleness=3)
    phases = [ResolvedPhase(ahead, list, 0, 2), ResolvedPhase(ahead, list, 2, 5)]
    assert [list(admitted(step, phases[step > 1], 4)) for step in range(4)] == [[0, 1], [1], [2, 3], [3]]
    fit(tmp_path / "run", grpo(staleness=3), steps=2)
    assert {rollout.step for rollout in records(tmp_path / "run").rollouts} == {0, 1}


async def test_what_was_not_yet_admitted_is_withdrawn_and_the_rest_is_left():
    async with MemoryStore() as store:
        tasks = make_tasks([{"n": n} for n in range(2)], "train")
        for step in range(3):
            await store.enqueue(RolloutPlan("run", step).train(tasks, 2))
        done, running = await store.lease("worker", 2, 60, run_id="run")
        await store.finish(done, reward=1.0)
        assert await withdraw(store, "run", 2, 2) == 4
        statuses = [r.status for r in await store.find_rollouts("run")]
        assert statuses == [
            Status.SUCCEEDED, Status.RUNNING, *[Status.QUEUED] * 6, *[Status.CANCELLED] * 4
        ]  # fmt: skip
        assert await withdraw(store, "run", 0, 0) == 7
        assert await store.heartbeat([running], 60) == []


async def test_an_evaluation_of_updates_that_are_lost_is_withdrawn_and_what_others_asked_for_is_not():
    async with MemoryStore() as store:
        tasks = make_tasks([{"n": n} for n in range(2)], "validation")
        for step in (5, 8):
            await store.enqueue(RolloutPlan("run", step).evaluate(tasks))
        done, *_ = await store.lease("worker", 5, 60, run_id="run")
        await store.finish(done, reward=1.0)
        others = [
            Rollout(id=f"other-{split}", run_id="run", task=tasks[0], group_id="o", step=8, split=split)
            for split in ("train", "validation")
        ]
        await store.enqueue(others)
        assert await withdraw(store, "run", 5, 5) == 4
        left = {r.id: r.status for r in await store.find_rollouts("run", step=8)}
        assert [left[r.id] for r in others] == [Status.QUEUED] * 2
        assert Counter(left.values()) == {Status.QUEUED: 2, Status.CANCELLED: 4}
        assert (await store.get_rollouts([done.rollout.id]))[0].status is Status.SUCCEEDED
        assert await find_evaluation(store, "run", 8, None) is None
        await store.enqueue(anew := RolloutPlan("run", 8, retry=1).evaluate(tasks))
        await store.cancel([r.id for r in others])
        for attempt in await store.lease("worker", 9, 60, run_id="run"):
            await store.finish(attempt, reward=0.5)
        found = await find_evaluation(store, "run", 8, None)
        assert found is not None
        assert (found.sampled, found.greedy, found.detail["greedy"].failures) == (0.5, 0.5, 0)
        assert found.detail["greedy"].tasks == len(anew) / 2


async def test_rollouts_of_earlier_steps_are_run_first_whenever_they_were_asked_for():
    async with MemoryStore() as store:
        tasks = make_tasks([{"n": 1}], "train")
        for step in (2, 0, 1):
            await store.enqueue(RolloutPlan("run", step).train(tasks, 2))
        leased = await store.lease("worker", 6, 60)
        assert [attempt.rollout.step for attempt in leased] == [0, 0, 1, 1, 2, 2]


def transition(version: int, *, trained: bool = True, advantage: float | None = 1.0) -> Transition:
    return Transition("r", f"c{version}", 0, "a", trained, [1], [2], [0.0], version, advantage=advantage)


def test_staleness_is_that_of_the_transitions_that_carry_loss():
    steps = (
        transition(7), transition(5), transition(6),
        transition(1, trained=False), transition(2, advantage=None),
    )  # fmt: skip
    # versions 7, 5, 6 under update of version 7: ages 0, 2, 1
    assert measure_staleness([Trajectory("r", "g", "t", 1.0, steps)], 7) == {
        "staleness_mean": 1.0,
        "staleness_max": 2.0,
    }
    taught = Trajectory("demonstration", "g", "t", math.nan, (replace(transition(0), policy_version=None),))
    assert measure_staleness([taught], 7) == measure_staleness([], 7) == {}
    assert describe_staleness(1.0, 2) == "staleness 1.00, at most 2"
    assert describe_staleness(0.0, 0) == ""


class Broken:
    """Works for so many steps, then fails."""

    def __init__(self, steps: int) -> None:
        self.left = steps * PER_STEP

    def __call__(self, reward: float) -> float:
        self.left -= 1
        if self.left < 0:
            raise FileNotFoundError("the database is not where it was")
        return reward


def test_a_step_that_failed_as_a_whole_while_it_ran_ahead_ends_the_run_and_is_made_anew(tmp_path: Path):
    broken = Broken(2)

    async def app(task: lightning.Task) -> float:
        return broken(await solve(task))

    settings = {"on_failure": lightning.FailurePolicy(retries=0), "concurrency": 1}
    with pytest.raises(TrainingError, match="step 3; fix the cause and resume"):
        fit(tmp_path / "run", grpo(staleness=1), app, **settings)
    assert fit(tmp_path / "run", grpo(staleness=1), resume=True, **settings).steps == 5
    solved = [r.step for r in records(tmp_path / "run").rollouts if r.status is Status.SUCCEEDED]
    assert [solved.count(step) for step in (0, 1, 2, 4)] == [PER_STEP] * 4
    ahead = [r for r in records(tmp_path / "run").rollouts if r.step == 3]
    assert len(ahead) == PER_STEP
    assert solved.count(3) >= PER_STEP - 1  # the one that ran when the error was found may have failed too
