"""Rejection: which rollouts of a group are good enough to be imitated.

    A = 1 for every call of a rollout that is kept          the others get none and carry no loss

Kept are, for each trained agent, the rollouts with the best final reward of the group, unless all final
rewards are equal: RAFT's best of n (Dong et al., arXiv 2304.06767), and with rewards of 0 and 1 all that are
right, as in STaR (Zelikman et al., arXiv 2203.14465) and RFT (Yuan et al., arXiv 2308.01825). Of those that
end equally well, only the ones with the best return: intermediate rewards choose among successes, and never
make a success of a failure. Or all whose return is at least a threshold, whatever the others did.

Assumes that what a good rollout did was good; a lucky one is imitated with its mistakes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lightning_core.credit.base import EPSILON, Comparison, Peer, total_return
from lightning_core.ranges import check_range
from lightning_core.types import Trajectory


@dataclass(frozen=True, slots=True)
class Best:
    """The credit method; see above."""

    least_return: float | None = None
    """Keep every rollout with at least this return. None: the best of the group."""

    def __post_init__(self) -> None:
        if self.least_return is not None:
            check_range("least_return", self.least_return, of="Best")

    def __call__(self, group: Sequence[Trajectory]) -> list[Comparison]:
        agents = sorted({t.agent for each in group for t in each.transitions if t.trained})
        return [Comparison(self._kept(group, agent), baseline=False) for agent in agents]

    def _kept(self, group: Sequence[Trajectory], agent: str) -> tuple[Peer, ...]:
        acted = [each for each in group if _replies(each, agent)]
        if self.least_return is None:
            kept = _best(acted, agent)
        else:
            kept = [each for each in acted if total_return(each, agent) >= self.least_return - EPSILON]
        return tuple(_replies(each, agent) for each in kept)


def _best(acted: Sequence[Trajectory], agent: str) -> list[Trajectory]:
    """Those with the best return among those with the best final reward; none if all end alike."""
    finals = [each.final(agent) for each in acted]
    if max(finals) - min(finals) <= EPSILON:
        return []
    ended_best = [each for each in acted if each.final(agent) >= max(finals) - EPSILON]
    most = max(total_return(each, agent) for each in ended_best)
    return [each for each in ended_best if total_return(each, agent) >= most - EPSILON]


def _replies(trajectory: Trajectory, agent: str) -> Peer:
    return {t.key: 1.0 for t in trajectory.transitions if t.trained and t.agent == agent}


def everything(group: Sequence[Trajectory]) -> list[Comparison]:
    """Every trained call is to be imitated: what is given as a demonstration."""
    return [
        Comparison(
            tuple({t.key: 1.0 for t in each.transitions if t.trained} for each in group), baseline=False
        )
    ]
