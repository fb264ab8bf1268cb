"""The critic's part in a step: a value for each state before credit, and how good the values were."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, pvariance

from lightning_core.algorithms.base import Algorithm
from lightning_core.backends.base import Backend
from lightning_core.types import Trajectory

SPREAD = 0.01
"""Deviation of the targets from which on there is something to explain; rewards are of the order of 1."""


async def value(
    trajectories: Sequence[Trajectory], algorithm: Algorithm, backend: Backend
) -> list[Trajectory]:
    """The trajectories with the critic's values; as they are if the algorithm has no critic."""
    if algorithm.critic is None:
        return list(trajectories)
    values = await backend.values(trajectories)
    return [
        replace(each, transitions=tuple(replace(t, value=values.get(t.key)) for t in each.transitions))
        for each in trajectories
    ]


def value_numbers(credited: Sequence[Trajectory]) -> dict[str, float]:
    """`value_mean`, and `explained_variance` = 1 - var(target - value) / var(target): 1 for a critic that
    knows, 0 for one that says the same everywhere.

    Only what can be said: nothing without targets, and nothing is explained where they hardly differ.
    """
    pairs = [
        (t.target, t.value)
        for each in credited
        for t in each.transitions
        if t.target is not None and t.value is not None
    ]
    if not pairs:
        return {}
    numbers = {"value_mean": fmean(value for _, value in pairs)}
    spread = pvariance(target for target, _ in pairs)
    if spread > SPREAD**2:
        left = pvariance(target - value for target, value in pairs)
        numbers["explained_variance"] = 1 - left / spread
    return numbers
