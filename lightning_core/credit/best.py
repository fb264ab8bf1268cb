"""Rejection: which rollouts of a group are good enough to be imitated.

    A = 1 for every call of a rollout that is kept          the others get none and carry no loss

Kept are, for each trained agent, the rollouts whose return is the group's best, unless all are equal: RAFT's
best of n (Dong et al., arXiv 2304.06767), and with rewards of 0 and 1 all that are right, as in STaR
(Zelikman et al., arXiv 2203.14465) and RFT (Yuan et al., arXiv 2308.01825). Or all whose return is at least a
threshold, whatever the others did.

Assumes that what a good rollout did was good; a lucky one is imitated with its mistakes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lightning_core.credit.base import EPSILON, Comparison, Peer, total_return
from lightning_core.types import Trajectory


@dataclass(frozen=True, slots=True)
class Best:
    """The credit method; see above."""

    least_return: float | None = None
    """Keep every rollout with at least this return. None: those with the best of the group."""

    def __call__(self, group: Sequence[Trajectory]) -> list[Comparison]:
        agents = sorted({t.agent for each in group for t in each.transitions if t.trained})
        return [Comparison(self._kept(group, agent), baseline=False) for agent in agents]

    def _kept(self, group: Sequence[Trajectory], agent: str) -> tuple[Peer, ...]:
        replies = [
            (
                total_return(each, agent),
                {t.key: 1.0 for t in each.transitions if t.trained and t.agent == agent},
            )
            for each in group
        ]
        acted = [(value, peer) for value, peer in replies if peer]
        least = self.least_return
        if least is None:
            values = [value for value, _ in acted]
            if max(values) - min(values) <= EPSILON:
                return ()
            least = max(values)
        return tuple(peer for value, peer in acted if value >= least - EPSILON)


def everything(group: Sequence[Trajectory]) -> list[Comparison]:
    """Every trained call is to be imitated: what is given as a demonstration."""
    return [
        Comparison(
            tuple({t.key: 1.0 for t in each.transitions if t.trained} for each in group), baseline=False
        )
    ]
