"""Tabular and state credit: the other rollouts of the group are the critic.

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
`own`. `relevance` finds out how far it is so.

`state` is the case own = 1: a call is compared with what other rollouts came to from the same state.

    A(i, t) = G(i, t) - V(s)

The baseline that depends on the state is as old as the policy gradient theorem (Sutton et al. 1999); taking
it from the other samples is RLOO's (Kool et al. 2019), here at every state and not only at the start. What
was decided before, and shows in the observation, no longer counts for the calls after it. The one more
steadies a mean over few: a state no other rollout was in is compared with the same turn of the agent.

It assumes that a reward about a call is owed to that call or to earlier ones: one that is given for what
later calls made of it is counted for the calls up to it alone, not for those that brought it about. If so it
is unbiased, also where observations hide something.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from lightning_core.credit.base import Comparison, Part, add_parts
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

        def parts(visit: Visit, place: int) -> tuple[Part, ...]:
            return advantage(visit, place, table, self.own)

        return [of_table(table, parts)]


state = Tabular(own=1.0)
"""One comparison: all advantages of the group; its baselines are its own, not the algorithm's."""


def of_table(table: Table, parts: Callable[[Visit, int], Sequence[Part]]) -> Comparison:
    """The comparison in which each visit, of the rollout at a place of the table, is credited with the sum of
    its parts."""
    made = [
        {visit.transition.key: tuple(parts(visit, place)) for visit in found}
        for place, found in enumerate(table.visits)
    ]
    every = {key: some for peer in made for key, some in peer.items()}
    advantages = ({key: add_parts(some) for key, some in peer.items()} for peer in made)
    return Comparison(tuple(advantages), baseline=False, parts=every.__getitem__)


def advantage(visit: Visit, place: int, table: Table, own: float) -> tuple[Part, ...]:
    """What the advantage of a visit of the rollout at this place of the table is made of."""
    returned, following = table.returned(visit, place), visit.following
    looked_up: float | None = None
    if following is not None and own < 1:
        looked_up = table.known(following.state, place, visit.transition.agent)
    expected = Part("mean return of others from this state", table.expected(visit, place), -1.0)
    if following is None or looked_up is None:
        return Part("return from here", returned), expected
    return (
        Part("return from here", returned, own),
        Part("reward until the next state", visit.earned - following.earned, 1 - own),
        Part("mean return of others from the next state", looked_up, 1 - own),
        expected,
    )
