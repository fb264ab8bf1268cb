"""Credit: how the rewards of a group of rollouts become an advantage for each transition.

A credit method is one pure function `(group) -> {key: advantage}`, where a group is the trajectories
of one task that are compared with one another. A transition it leaves out carries no loss. What
holds for every method:

- a rollout counts once in every baseline, whatever its number of calls;
- an agent that is not trained is in no baseline;
- a group (or an agent's part of it) whose returns are all equal says nothing, and is left out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from lightning_core.types import Key, Trajectory

Credit = Callable[[Sequence[Trajectory]], dict[Key, float]]

EPSILON = 1e-6
"""Spread below which returns count as equal; rewards are of the order of 1."""


@dataclass(frozen=True, slots=True)
class CreditReport:
    """What the credit method made of a batch."""

    groups: int
    zero_variance_groups: int
    """Groups in which no transition got an advantage: their rollouts were all equally good."""
    transitions: Counter[str] = field(default_factory=Counter)
    """Transitions with an advantage, per agent."""


def total_return(trajectory: Trajectory) -> float:
    """Final reward plus all intermediate rewards, each counted once: G = R + sum of r."""
    return trajectory.reward + trajectory.intermediate


def normalise(returns: Sequence[float]) -> list[float] | None:
    """(G - mean) / std over the rollouts, with the population's std; None if they are all equal."""
    mean = sum(returns) / len(returns)
    std = math.sqrt(sum((g - mean) ** 2 for g in returns) / len(returns))
    return [(g - mean) / std for g in returns] if std > EPSILON else None


def group_by_id(trajectories: Iterable[Trajectory]) -> dict[str, list[Trajectory]]:
    """Trajectories under their `group_id`, in the order given."""
    groups: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        groups.setdefault(trajectory.group_id, []).append(trajectory)
    return groups


def assign(trajectories: Iterable[Trajectory], credit: Credit) -> tuple[list[Trajectory], CreditReport]:
    """The trajectories with their advantages; groups without any are dropped and counted."""
    kept: list[Trajectory] = []
    groups = group_by_id(trajectories)
    agents: Counter[str] = Counter()
    for group in groups.values():
        advantages = credit(group)
        if advantages:
            kept += [_with_advantages(trajectory, advantages, agents) for trajectory in group]
    dropped = len(groups) - len({trajectory.group_id for trajectory in kept})
    return kept, CreditReport(groups=len(groups), zero_variance_groups=dropped, transitions=agents)


def _with_advantages(
    trajectory: Trajectory, advantages: dict[Key, float], agents: Counter[str]
) -> Trajectory:
    credited = tuple(
        replace(transition, advantage=advantages.get(transition.key)) for transition in trajectory.transitions
    )
    agents.update(t.agent for t in credited if t.trained and t.advantage is not None)
    return replace(trajectory, transitions=credited)
