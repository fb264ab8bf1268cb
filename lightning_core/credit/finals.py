"""Final rewards, which decide: where they are equal, only intermediate rewards tell rollouts apart.

Those are small on purpose. Divided by their own deviation they would become as large as the difference
between success and failure, so a deviation is then no less than that of one success among n failures, with
rewards of 1 and 0:

    least unit = sqrt(n - 1) / n
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from lightning_core.types import Key, Trajectory

EPSILON = 1e-6
"""Spread below which rewards count as equal; they are of the order of 1."""


class Finals:
    """The final rewards of some rollouts, by the agents of their transitions."""

    def __init__(self, trajectories: Iterable[Trajectory]) -> None:
        self._rollouts = {each.rollout_id: each for each in trajectories}
        self._agents = {t.key: t.agent for each in self._rollouts.values() for t in each.transitions}

    def equal(self, keys: Iterable[Key]) -> bool:
        """Whether the rollouts of these transitions end alike, for each of the agents that made them.

        Keys that are no transition's are known by their rollout alone.
        """
        given = list(keys)
        rollouts = [self._rollouts[name] for name in {key[0] for key in given} if name in self._rollouts]
        agents = {self._agents[key] for key in given if key in self._agents}
        return all(_alike([each.final(agent) for each in rollouts]) for agent in agents)


def only_finals(trajectory: Trajectory) -> Trajectory:
    """The trajectory as if there were no intermediate rewards."""
    transitions = tuple(replace(t, reward=0.0) for t in trajectory.transitions)
    return replace(trajectory, transitions=transitions, intermediate=0.0)


def least_unit(peers: int) -> float:
    """The formula above for n peers."""
    return math.sqrt(peers - 1) / peers


def _alike(values: list[float]) -> bool:
    return max(values, default=0.0) - min(values, default=0.0) <= EPSILON
