"""`kill -9` at any moment, then resume: no rollout lost, none counted twice."""

from __future__ import annotations

import asyncio
import importlib
import multiprocessing
import os
import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from lightning_core.stores.sqlite import SqliteStore
from lightning_core.types import Status
from tests.trainer import job

ENDLESS = 100_000


@dataclass(frozen=True)
class Trial:
    """How a job is run and how often it is killed."""

    kills: int
    staleness: int = 0
    checkpoint_every: int = 1

    @property
    def options(self) -> dict[str, int]:
        return {"staleness": self.staleness, "checkpoint_every": self.checkpoint_every}


@pytest.mark.parametrize(
    "trial",
    [Trial(20), Trial(6, staleness=2), Trial(6, staleness=1, checkpoint_every=3)],
    ids=["on-policy", "ahead", "ahead of the checkpoint"],
)
def test_kills_lose_no_rollout_and_count_none_twice(tmp_path, trial):
    seed = random.randrange(2**32)
    folder = tmp_path / "run"
    # a fresh interpreter forks the trainers: this one has threads of its own, which do not survive a fork
    zygote = multiprocessing.get_context("spawn").Process(target=kill_and_resume, args=(folder, seed, trial))
    zygote.start()
    zygote.join()
    assert zygote.exitcode == 0, f"seed {seed}: the job did not come to its end after its kills"
    asyncio.run(check(folder, seed, trial))


def kill_and_resume(folder: Path, seed: int, trial: Trial) -> None:
    """Kill the job again and again at random moments, then let it finish.

    On a busy machine a step takes longer: then the moments come later, until some steps lie between them.
    """
    for name in ("openai", "lightning_core.backends.local", "lightning_core.trainer.trainer"):
        importlib.import_module(name)

    draw = random.Random(seed)
    for kill in range(5 * trial.kills):
        if kill >= trial.kills and steps_made(folder) >= trial.kills // 2:
            break
        late = draw.uniform(0.2, 3.0 + kill / trial.kills)
        status = job.fork_fit(folder, steps=ENDLESS, kill_after=late, **trial.options)
        if not os.WIFSIGNALED(status):
            raise SystemExit(f"kill {kill}: the job ended by itself, with status {status}")
    if job.fork_fit(folder, steps=steps_made(folder) + 3, kill_after=None, **trial.options) != 0:
        raise SystemExit("the resumed job failed")


def steps_made(folder: Path) -> int:
    """Updates that a checkpoint holds."""
    return max((int(path.name[5:]) for path in (folder / "checkpoints").glob("step-*")), default=0)


async def check(folder: Path, seed: int, trial: Trial) -> None:
    """Every planned rollout was finished once and consumed by the one update of its step."""
    async with SqliteStore(f"sqlite:///{folder / 'store.db'}") as store:
        (run,) = await store.list_runs()
        steps = steps_made(folder)
        assert steps >= trial.kills // 2, (seed, "too few steps between the kills to prove anything")
        assert run.status == "finished", seed
        planned = await store.find_rollouts(run.id, split="train")
        # what a resumed run was not yet to begin was withdrawn, and made anew when it was
        rollouts = [r for r in planned if r.status is not Status.CANCELLED and r.step < steps]
        if trial.checkpoint_every == 1:
            assert len(rollouts) == len(planned), seed
        per_step = job.TASKS_PER_STEP * job.GROUP_SIZE
        assert Counter(r.step for r in rollouts) == dict.fromkeys(range(steps), per_step), seed
        assert set(Counter(r.group_id for r in rollouts).values()) == {job.GROUP_SIZE}, seed
        assert {r.status for r in rollouts} == {Status.SUCCEEDED}, seed
        ids = [r.id for r in rollouts]
        calls, rewards = await store.get_calls(ids), await store.get_rewards(ids)
        for rollout in rollouts:
            done = [c for c in calls[rollout.id] if c.status == "completed"]
            assert Counter(c.agent for c in done) == {"writer": 1, "critic": 1}, (seed, rollout.id)
            assert [r.value for r in rewards[rollout.id] if r.kind == "final"] == [rollout.reward], seed
        metrics = await store.list_metrics(run.id)
        assert [m.step for m in metrics] == list(range(steps)), seed
        assert {m.values["rollouts"] for m in metrics} == {per_step}, seed
        updates = [m for m in metrics if "policy_version" in m.values]
        assert len(updates) == steps, (seed, "steps without an update prove nothing of versions")
        assert [m.values["policy_version"] for m in updates] == list(range(1, len(updates) + 1)), seed
        made_on = {m.step: int(m.values["policy_version"]) - 1 for m in updates}
        for rollout in rollouts:
            if rollout.step in made_on:
                ages = {made_on[rollout.step] - c.policy_version for c in calls[rollout.id]}
                assert min(ages) >= 0, (seed, rollout.id)
                assert max(ages) <= trial.staleness, (seed, rollout.id)
