"""The policies of a run from the trainer's side: the run's own, and each named one with what is its alone.

A `PolicyLearner` is a policy with its backend and the folder of its weights. Credit is assigned over whole
rollouts; each policy is then updated from the transitions that it sampled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import fmean
from typing import Final

from lightning_core.backends.base import Backend
from lightning_core.errors import ModelError
from lightning_core.records.types import Trajectory
from lightning_core.stores.base import Store
from lightning_core.stores.versions import POLICY
from lightning_core.trainer.folder import RunFolder
from lightning_core.trainer.summary import Evaluation
from lightning_core.trainer.versions import Versions

SUMS: Final = frozenset(("tokens", "update_seconds", "publish_seconds"))
"""Numbers of an update that add up over policies; of `..._max` the largest counts, of others the mean."""


@dataclass(frozen=True, slots=True)
class PolicyLearner:
    """A policy under training."""

    policy: str | None
    """The name; None: the run's own."""
    backend: Backend
    folder: RunFolder

    @property
    def shown(self) -> str:
        """The name as people read it."""
        return POLICY if self.policy is None else self.policy


def sampled_by(policy: str | None, trajectories: Iterable[Trajectory]) -> list[Trajectory]:
    """The trajectories with what a policy sampled for trained agents; those without any are left out."""
    parts = (
        replace(each, transitions=tuple(t for t in each.transitions if t.trained and t.policy == policy))
        for each in trajectories
    )
    return [part for part in parts if part.transitions]


def joined_numbers(by_policy: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """The numbers of several policies' updates: each under `policy/NAME/`, and over all that were updated."""
    updated = [numbers for numbers in by_policy.values() if "skipped_updates" not in numbers]
    joined = {f"policy/{name}/{k}": value for name, of in by_policy.items() for k, value in of.items()}
    if failed := sum(numbers.get("failed_updates", 0.0) for numbers in by_policy.values()):
        joined["failed_updates"] = failed
    if not updated:
        return {**joined, "skipped_updates": 1.0}
    for name in dict.fromkeys(chain.from_iterable(updated)):
        if name == "policy_version":  # a line of its own for each
            continue
        values = [numbers[name] for numbers in updated if name in numbers]
        joined[name] = (
            sum(values) if name in SUMS else max(values) if name.endswith("_max") else fmean(values)
        )
    return joined


async def load_checkpoints(learners: Sequence[PolicyLearner], step: int) -> None:
    """Go on from the checkpoints after `step` updates. The ModelError for a damaged one names those before
    it."""
    for learner in learners:
        path = learner.folder.checkpoint(step)
        try:
            await learner.backend.load(path)
        except ModelError as error:
            before = [each for each in learners[0].folder.checkpoint_folders() if each.name < path.name]
            if not before:
                raise
            raise ModelError(
                f"{error}. There is an earlier checkpoint, {before[-1].name}: to go on from it, delete "
                f"{path.name} of {str(learners[0].folder.checkpoints)!r}, which holds update {step}, and "
                f"resume"
            ) from error


class Lines:
    """The versions of every policy of a run: each has a line of its own."""

    def __init__(self, store: Store, learners: Sequence[PolicyLearner], newest: int) -> None:
        several = len(learners) > 1
        self._learners = learners
        self._lines = [
            Versions(store, each.folder, each.backend, newest, policy=each.policy, several=several)
            for each in learners
        ]

    async def begin(self, step: int, total: int) -> list[str]:
        """As `Versions.begin`, for each policy."""
        notes = [
            (await line.begin(step, total), each)
            for line, each in zip(self._lines, self._learners, strict=True)
        ]
        return [
            note if each.policy is None else f"policy {each.policy!r} {note}" for note, each in notes if note
        ]

    async def checkpoint(self, step: int) -> None:
        """Save the state of every policy, and record it. The run's own is saved last: a run goes on from its
        newest checkpoint, so all others are there by then."""
        for each in (*self._learners[1:], self._learners[0]):
            await each.backend.save(each.folder.checkpoint(step))
        for line in self._lines:
            await line.saved(step)

    async def sampled(self, trajectories: Sequence[Trajectory]) -> None:
        """As `Versions.sampled`, for each policy."""
        for line, each in zip(self._lines, self._learners, strict=True):
            own = trajectories if len(self._lines) == 1 else sampled_by(each.policy, trajectories)
            await line.sampled(own)

    async def evaluated(self, result: Evaluation) -> None:
        """Record an evaluation as numbers of the versions that are served."""
        for line in self._lines:
            await line.evaluated(result)

    async def export(self, *, best: bool) -> int | None:
        """As `Versions.export`, for each policy; returns how many updates the exported policy had, the latest
        of several."""
        exported = [await line.export(best=best) for line in self._lines]
        return max((step for step in exported if step is not None), default=None)
