"""Tabular credit: the other rollouts of the group are the critic.

    A(i, t) = own * G(i, t) + (1 - own) * (r + V(next state)) - V(state)

    G       the rewards from t on; r those of them before the next state
    V(s)    mean G of the other rollouts that were in s, an agent shown an observation; as baseline
            with one more among them that earned what the agent does at that turn

The return of a call tells of all that came after it. What others made of the same next state tells the same
with less noise: what the rollout did later, and what other agents did, no longer counts. The table in the
place of a critic is GAGPO's (Zhu et al., arXiv 2605.13217); mixing in the whole return is Bellemare et
al.'s (2016, mixed Monte Carlo update, arXiv 1606.01868). Where no other rollout came to the next state, the
return stands alone.

Assumes that an observation says what matters of the past. What it hides is still credited, with weight
`own`. With own = 1 that is not assumed: `state`. `relevance` finds out how far it is so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from lightning_core.credit.base import Comparison
from lightning_core.credit.table import Table, Visit
from lightning_core.ranges import check_range
from lightning_core.types import Trajectory


@dataclass(frozen=True, slots=True)
class Tabular:
    """Advantages from a table of the group. It has baselines of its own, so an algorithm's is not used."""

    needs_group: ClassVar[bool] = True
    own: float = 0.5
    """The share of the rollout's own return in what came of a call."""

    def __post_init__(self) -> None:
        check_range("own", self.own, of="Tabular", least=0, most=1)

    def __call__(self, group: Sequence[Trajectory]) -> list[Comparison]:
        """One comparison: all advantages of the group."""
        if len(group) < 2:
            return []
        table = Table(group)
        advantages = (
            {visit.transition.key: advantage(visit, place, table, self.own) for visit in found}
            for place, found in enumerate(table.visits)
        )
        return [Comparison(tuple(advantages), baseline=False)]


def advantage(visit: Visit, place: int, table: Table, own: float) -> float:
    """Of a visit of the rollout at this place of the table."""
    returned, following = table.returned(visit, place), visit.following
    looked_up: float | None = None
    if following is not None and own < 1:
        looked_up = table.known(following.state, place, visit.transition.agent)
    if following is None or looked_up is None:
        came_to = returned
    else:
        came_to = own * returned + (1 - own) * (visit.earned - following.earned + looked_up)
    return came_to - table.expected(visit, place)
