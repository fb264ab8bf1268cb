"""Rollouts that go on while the update runs: how far ahead they may be, and what is said of it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

import lightning_core as lightning
from lightning_core.errors import TrainingError
from lightning_core.stores.memory import MemoryStore
from lightning_core.trainer.course import Course
from lightning_core.trainer.plan import make_tasks, plan_training
from lightning_core.trainer.staleness import admitted, describe, measure, withdraw
from lightning_core.types import Status, Trajectory, Transition
from tests.trainer.watching import PER_STEP, Records, Watched, fit, grpo, records, solve


def ages(run: Records) -> list[int]:
    """By how many versions each call of a trained rollout was behind the update it was used for."""
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


@pytest.mark.parametrize("staleness", [1, 2])
def test_rollouts_begin_before_the_update_and_are_never_staler_than_allowed(tmp_path: Path, staleness: int):
    summary = fit(tmp_path / "run", grpo(staleness=staleness), steps=6)
    run = records(tmp_path / "run")
    found = ages(run)
    assert min(found) >= 0
    assert 0 < max(found) <= staleness
    # every slot was free: what was admitted began at once, under the version that was published then
    first = {r.step: {c.policy_version for c in run.calls[r.id]} for r in run.rollouts if r.step <= staleness}
    assert all(0 in versions for versions in first.values())
    for step, entry in run.metrics.items():
        later = [r for r in run.rollouts if r.step == step + 1]
        assert all(r.created_at < entry.created_at for r in later)
    assert summary.staleness_max == max(m.values.get("staleness_max", 0) for m in run.metrics.values()) > 0
    assert 0 < summary.staleness_mean <= staleness
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
    courses = [Course(ahead, list, 0, 2), Course(ahead, list, 2, 5)]
    assert [list(admitted(step, courses[step > 1], 4)) for step in range(4)] == [[0, 1], [1], [2, 3], [3]]
    fit(tmp_path / "run", grpo(staleness=3), steps=2)
    assert {rollout.step for rollout in records(tmp_path / "run").rollouts} == {0, 1}


async def test_what_was_not_yet_admitted_is_withdrawn_and_the_rest_is_left():
    async with MemoryStore() as store:
        tasks = make_tasks([{"n": n} for n in range(2)], "train")
        for step in range(3):
            await store.enqueue(plan_training("run", step, tasks, 2, 1))
        done, running = await store.lease("worker", 2, 60, run_id="run")
        await store.finish(done, reward=1.0)
        assert await withdraw(store, "run", 2) == 4
        statuses = [r.status for r in await store.find_rollouts("run")]
        assert statuses == [
            Status.SUCCEEDED, Status.RUNNING, *[Status.QUEUED] * 6, *[Status.CANCELLED] * 4
        ]  # fmt: skip
        assert await withdraw(store, "run", 0) == 7
        assert await store.heartbeat([running], 60) == []


async def test_rollouts_of_earlier_steps_are_run_first_whenever_they_were_asked_for():
    async with MemoryStore() as store:
        tasks = make_tasks([{"n": 1}], "train")
        for step in (2, 0, 1):
            await store.enqueue(plan_training("run", step, tasks, 2, 1))
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
    assert measure([Trajectory("r", "g", "t", 1.0, steps)], 7) == {
        "staleness_mean": 1.0,
        "staleness_max": 2.0,
    }
    taught = Trajectory("demonstration", "g", "t", math.nan, (transition(0),))
    assert measure([taught], 7) == measure([], 7) == {}
    assert describe(1.0, 2) == "staleness 1.00, at most 2"
    assert describe(0.0, 0) == ""


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
    with pytest.raises(TrainingError, match="step 2; fix the cause and resume"):
        fit(tmp_path / "run", grpo(staleness=1), app, **settings)
    assert fit(tmp_path / "run", grpo(staleness=1), resume=True, **settings).steps == 5
    solved = [r.step for r in records(tmp_path / "run").rollouts if r.status is Status.SUCCEEDED]
    assert all(solved.count(step) == PER_STEP for step in range(5))
