"""Hierarchical credit: an agent called several times is compared across rollouts, and with itself within one.

    A(i, t) = across(i, t) + weight * within(i, t)
    across  R_i + sum of r_i, compared per agent over the rollouts, as in `per_agent`
    within  the return-to-go of the call in its branch, compared over the agent's calls in this rollout

After the call-and-return of M-GRPO (Hong et al., arXiv 2511.13288), where a main agent delegates to sub-
agents and each level has group-relative advantages of its own; comparing the calls of one rollout is this
project's reading of it. The calls share the final reward, so intermediate rewards or branches of different
length make the difference: without them nothing is added to `per_agent`.

Assumes that the calls of an agent in one rollout are so many tries at alike jobs, as those of a worker are.
It is biased: the calls of one rollout depend on one another, so a call's baseline may be its own doing. As
comparisons are added up, each must have its baseline taken off: with baseline "none" it is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from lightning_core.credit.base import Comparison, parts_of, parts_to_go, turn_numbers
from lightning_core.credit.branches import returns_to_go
from lightning_core.credit.whole import per_agent
from lightning_core.errors import ConfigError
from lightning_core.records.types import Key, Trajectory


@dataclass(frozen=True, slots=True)
class Hierarchical:
    """Per agent, across and within rollouts."""

    needs_baseline: ClassVar[bool] = True
    weight: float = 0.5
    """Weight of the comparison within a rollout, beside that across rollouts."""

    def __post_init__(self) -> None:
        if not self.weight >= 0:
            raise ConfigError(f"Hierarchical(weight={self.weight!r}): must not be negative")

    def __call__(self, group: Sequence[Trajectory]) -> list[Comparison]:
        """One comparison for each trained agent, and one for each that a rollout called several times."""
        return [*per_agent(group), *(each for trajectory in group for each in self._within(trajectory))]

    def _within(self, trajectory: Trajectory) -> list[Comparison]:
        returns, turns = returns_to_go(trajectory), turn_numbers(trajectory)
        agents: dict[str, dict[int, dict[Key, float]]] = {}
        for t in trajectory.transitions:
            if t.trained:
                agents.setdefault(t.agent, {}).setdefault(turns[t.key], {})[t.key] = returns[t.key]
        parts = parts_of([trajectory], lambda trajectory, t: parts_to_go(trajectory, t, 1.0))
        return [Comparison(tuple(calls.values()), self.weight, parts=parts) for calls in agents.values()]
