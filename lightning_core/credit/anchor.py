"""Anchor credit (GiGPO): calls that were shown the same are compared with one another as well.

    A(i, t) = A_E(i) + weight * A_S(i, t)
    A_E    R_i + sum of r_i, compared over the group
    A_S    discounted return-to-go along the branch, compared over the rollouts in which the same agent was
           shown the same observation

Feng et al., GiGPO, arXiv 2505.10978, where weight is omega, and both are 1 and 0.95. There each visit of a
state counts; here a rollout that comes to a state several times counts once in its baseline, with the mean
over its visits, and a state that only one rollout came to adds nothing.

Assumes that an observation says enough of the state. Not unbiased: states that several rollouts come to weigh
more, and a discount below 1 favours short ways. With weight 0 it is `uniform`. As comparisons are added up,
each must have its baseline taken off: with baseline "none" it is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from lightning_core.credit.base import Comparison, parts_of, parts_to_go, peers_by
from lightning_core.credit.branches import returns_to_go
from lightning_core.credit.whole import uniform
from lightning_core.errors import ConfigError
from lightning_core.records.types import Trajectory


@dataclass(frozen=True, slots=True)
class Anchor:
    """GiGPO's two levels."""

    needs_baseline: ClassVar[bool] = True
    weight: float = 1.0
    """Weight of the comparison by observation, beside that of whole rollouts."""
    discount: float = 0.95
    """Worth of a reward one turn earlier, in the comparison by observation."""

    def __post_init__(self) -> None:
        if not (self.weight >= 0 and 0 <= self.discount <= 1):
            raise ConfigError(f"{self!r}: weight must not be negative, discount lies between 0 and 1")

    def __call__(self, group: Sequence[Trajectory]) -> list[Comparison]:
        """One comparison for the group, and one for each trained agent and observation."""
        returns = {k: g for each in group for k, g in returns_to_go(each, self.discount).items()}
        anchors = peers_by(lambda t: (t.agent, t.observation) if t.observation else None, group, returns)
        parts = parts_of(group, lambda trajectory, t: parts_to_go(trajectory, t, self.discount))
        return [*uniform(group), *(Comparison(peers, self.weight, parts=parts) for peers in anchors.values())]
