"""`kill -9` at any moment, then resume: no rollout lost, none counted twice."""

from __future__ import annotations

import asyncio
import importlib
import multiprocessing
import os
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from lightning_core.records.types import Status
from lightning_core.stores.sqlite import SqliteStore
from lightning_core.stores.versions import weights_of
from tests.trainer import job


@dataclass(frozen=True)
class Trial:
    """A job that is killed at random moments, `kills` times and until it has made `least` steps."""

    kind: job.Plain
    kills: int
    least: int
    folder: Path
    seed: int = field(default_factory=lambda: random.randrange(2**32))

    def kill_and_resume(self) -> None:
        """Kill the job again and again, then let it finish."""
        for name in ("openai", "lightning_core.backends.local", "lightning_core.trainer.trainer"):
            importlib.import_module(name)
        most = (self.kind.checkpoint_every + 1) * job.TASKS_PER_STEP * job.GROUP_SIZE
        fate = job.Fate(random.Random(self.seed), most)
        for kill in range(5 * self.kills):
            if kill >= self.kills and steps_made(self.folder) >= self.least:
                break
            status = job.fork_fit(self.folder, self.kind, steps=self.kind.endless, fate=fate)
            if not os.WIFSIGNALED(status):
                raise SystemExit(f"kill {kill}: the job ended by itself, with status {status}")
        if job.fork_fit(self.folder, self.kind, steps=steps_made(self.folder) + 3, fate=None) != 0:
            raise SystemExit("the resumed job failed")


Trials = dict[str, tuple[Trial, BaseProcess]]


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trials]:
    """All at once. A fresh interpreter forks the trainers of each: this one has threads of its own, which do
    not survive a fork."""
    folder = tmp_path_factory.mktemp("crash")
    made = {
        "plain": Trial(job.Plain(), kills=10, least=6, folder=folder / "plain"),
        "everything": Trial(job.Everything(), kills=6, least=job.PHASE + 2, folder=folder / "everything"),
        "several": Trial(job.Several(), kills=4, least=4, folder=folder / "several"),
    }
    spawn = multiprocessing.get_context("spawn")
    begun = {name: (trial, spawn.Process(target=trial.kill_and_resume)) for name, trial in made.items()}
    for _, process in begun.values():
        process.start()
    yield begun
    for _, process in begun.values():
        process.join()


@pytest.mark.parametrize("name", ["plain", "everything", "several"])
def test_kills_lose_no_rollout_and_count_none_twice(trials: Trials, name: str) -> None:
    trial, process = trials[name]
    process.join()
    assert process.exitcode == 0, f"seed {trial.seed}: the job did not come to its end after its kills"
    asyncio.run(check(trial))


def steps_made(folder: Path) -> int:
    """Updates that a checkpoint holds."""
    return max((int(path.name[5:]) for path in (folder / "checkpoints").glob("step-*")), default=0)


async def check(trial: Trial) -> None:
    """Every planned rollout was finished once and consumed by the update of its step, and by its replays."""
    seed, kind = trial.seed, trial.kind
    async with SqliteStore(f"sqlite:///{trial.folder / 'store.db'}") as store:
        (run,) = await store.list_runs()
        steps = steps_made(trial.folder)
        assert steps >= trial.least, (seed, "too few steps between the kills to prove anything")
        assert run.status == "finished", seed
        planned = await store.find_rollouts(run.id, split="train")
        # what a resumed run was not yet to begin was withdrawn, and made anew when it was
        rollouts = [r for r in planned if r.status is not Status.CANCELLED and r.step < steps]
        if trial.kind.checkpoint_every == 1:
            assert len(rollouts) == len(planned), seed
        expected = {step: kind.groups(step) * job.GROUP_SIZE for step in range(steps)}
        assert Counter(r.step for r in rollouts) == expected, seed
        assert set(Counter(r.group_id for r in rollouts).values()) == {job.GROUP_SIZE}, seed
        assert {r.status for r in rollouts} == {Status.SUCCEEDED}, seed
        ids = [r.id for r in rollouts]
        calls, rewards = await store.get_calls(ids), await store.get_rewards(ids)
        for rollout in rollouts:
            done = [c for c in calls[rollout.id] if c.status == "completed"]
            assert Counter(c.agent for c in done) == {"writer": 1, "critic": 1}, (seed, rollout.id)
            assert [r.value for r in rewards[rollout.id] if r.kind == "final"] == [rollout.reward], seed
        metrics = await store.list_metrics(run.id)
        assert {m.step: m.values["rollouts"] for m in metrics} == expected, seed
        assert len(metrics) == steps, seed
        names = {agent: kind.policies.get(agent) for agent in ("writer", "critic")}
        for policy in set(names.values()):
            numbers = f"policy/{policy or 'policy'}/policy_version" if kind.policies else "policy_version"
            assert [m.values[numbers] for m in metrics] == list(range(1, steps + 1)), seed
            versions = await store.list_resources(run.id, weights_of(policy))
            saved = [version.version for version in versions]
            assert saved == sorted(set(saved)), (seed, policy)
            assert set(saved) >= {*range(0, steps + 1, kind.checkpoint_every)}, (seed, policy)
        if kind.agents is None:
            assert {(c.agent, c.policy) for of in calls.values() for c in of} == set(names.items()), seed
        trained = job.TASKS_PER_STEP * job.GROUP_SIZE
        assert {m.values["agent/writer/transitions"] for m in metrics} == {trained}, seed
        for rollout in rollouts:
            ages = {rollout.step - c.policy_version for c in calls[rollout.id]}
            assert min(ages) >= 0, (seed, rollout.id)
            assert max(ages) <= kind.staleness, (seed, rollout.id)
        for entry in metrics:  # the first step of a phase replays nothing
            assert entry.values["staleness_max"] <= kind.staleness + kind.replay, (seed, entry.step)
            again = bool(kind.replay and entry.step % job.PHASE)
            assert (entry.values.get("replay/skipped") == 0) == again, (seed, entry.step)
