"""Pairs: the best rollout of a group beside its worst, the second best beside the second worst, and so on.

    A = +1 for every call of the better one, -1 for every call of the worse one

Each trained agent is paired with itself: over the rollouts of the group in which it acted, by the final
reward that it got there, and among equals by the return; a side is all of its replies in the rollout. A
rollout is in at most one pair of an agent. A pair whose final rewards differ by no more than `margin` is not
made, however different the intermediate rewards; what is in no pair carries no loss.

Why whole rollouts and not single turns: what a group ends with is a reward of the rollout, and two rollouts
seldom have a later turn with the same prompt. It is the pair of ETO (Song et al., arXiv 2403.02502) and of
multi-turn DPO (Shi et al., DMPO, arXiv 2406.14868). With one trained agent the sum over all turns is what
DPO's derivation holds for, if the environment is deterministic, as both sides begin in the same state and
everything else cancels (Rafailov et al., "From r to Q*", arXiv 2404.12358).

Why within an agent: one that is called when things went wrong is on the worse side of most pairs of whole
rollouts, and would be taught to say less of anything (see `per_agent`). Of the calls of the SQL example's
rewriter that came into pairs, 76 % were on the worse side so, and 59 % when paired by agent. The price: the
two sides of such an agent may begin in different states, whose values do not cancel.

Left out: pairs of single turns, and DMPO's weights and norm for the length of a rollout.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lightning_core.credit.base import EPSILON, Comparison, group_by_id, total_return
from lightning_core.credit.branches import without_dropped
from lightning_core.ranges import check_range
from lightning_core.types import Key, Trajectory


@dataclass(frozen=True, slots=True)
class Pair:
    """The replies of an agent in a better and in a worse rollout."""

    chosen: tuple[Key, ...]
    rejected: tuple[Key, ...]


@dataclass(frozen=True, slots=True)
class Pairs:
    """The credit method; see above."""

    margin: float = 0.0
    """Final rewards that differ by no more say nothing about which is better."""

    def __post_init__(self) -> None:
        check_range("margin", self.margin, of="Pairs", least=0)

    def __call__(self, group: Sequence[Trajectory]) -> list[Comparison]:
        return [
            Comparison((dict.fromkeys(pair.chosen, 1.0), dict.fromkeys(pair.rejected, -1.0)), baseline=False)
            for pair in pair_up(group, self.margin)
        ]


def pair_up(trajectories: Iterable[Trajectory], margin: float = 0.0) -> list[Pair]:
    """The pairs of each group, agent by agent; what is equal keeps the order of the rollouts."""
    pairs: list[Pair] = []
    for group in group_by_id(map(without_dropped, trajectories)).values():
        for agent in sorted({t.agent for each in group for t in each.transitions if t.trained}):
            acted = [each for each in group if _replies(each, agent)]
            ranked = sorted(acted, key=lambda each: (-each.final(agent), -total_return(each, agent)))
            for best, worst in zip(ranked, reversed(ranked), strict=True):
                if best.final(agent) - worst.final(agent) <= max(margin, EPSILON):
                    break
                pairs.append(Pair(_replies(best, agent), _replies(worst, agent)))
    return pairs


def _replies(trajectory: Trajectory, agent: str) -> tuple[Key, ...]:
    return tuple(
        t.key for t in trajectory.transitions if t.trained and t.agent == agent and len(t.completion_ids)
    )
