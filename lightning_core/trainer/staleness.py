"""Staleness: by how many updates the weights that sampled something are behind those that it updates.

Admission. With batches of B rollouts and a bound S, accepted and running rollouts together are at most
(S + t) * B while update t is being made, counted from 1 (Fu et al., AReaL, arXiv 2505.24298, section 5.1). In
whole batches: the rollouts of step k may begin once update k - S is published. Batches keep their planned
order, so short rollouts are not preferred to long ones; the price is that a step waits for its slowest.

A step of another phase may be credited and gathered in another way, so none is begun early: a phase begins
with what its own policy samples.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean

from lightning_core.stores.base import Store
from lightning_core.trainer.course import Course
from lightning_core.trainer.plan import is_planned
from lightning_core.types import Status, Trajectory


def admitted(step: int, course: Course, total: int) -> range:
    """The steps whose rollouts may be run while step `step` is made, itself first."""
    return range(step, min(step + course.algorithm.staleness + 1, course.end, total))


async def withdraw(store: Store, run_id: str, first: int, made: int) -> int:
    """Cancel the unfinished training rollouts of steps `first` and later, and the unfinished evaluations of
    what is not among the `made` updates; returns how many. What others have asked for is left.

    A run that goes on from a checkpoint before those rollouts were admitted would sample them with weights
    older than the bound allows, or evaluate weights that are not yet made again. They are planned anew when
    their step is gathered, or evaluated.
    """
    unfinished = [
        rollout
        for status in (Status.QUEUED, Status.RUNNING)
        for rollout in await store.find_rollouts(run_id, status=status)
        if is_planned(rollout)
        and (rollout.step >= first if rollout.split == "train" else rollout.step > made)
    ]
    return await store.cancel([rollout.id for rollout in unfinished])


def measure(trajectories: Iterable[Trajectory], version: int) -> dict[str, float]:
    """Mean and largest staleness of the transitions that carry loss, given the version that is updated;
    nothing of those of which it is not known, such as demonstrations."""
    ages = [
        version - t.policy_version
        for trajectory in trajectories
        for t in trajectory.transitions
        if t.trained and t.advantage is not None and t.policy_version is not None
    ]
    return {"staleness_mean": fmean(ages), "staleness_max": float(max(ages))} if ages else {}


def describe(mean: float, most: float) -> str:
    """The staleness of a step or a run in words; "" where everything was on-policy."""
    return f"staleness {mean:.2f}, at most {most:.0f}" if most else ""
