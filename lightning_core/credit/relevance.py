"""Relevance credit: a call counts as much as what others said in its place made a difference.

    A(i, t) = w(s) * (own * G(i, t) + (1 - own) * (r + V(next state)) - V(s))
    w(s)    = max(0, 1 - W / B)

    G, V, r  as in `tabular`: the return from t on; what others came to from a state; the reward until the next
    B        mean square of returns between the replies that other rollouts gave in s
    W        mean square of returns within them

Where replies do not matter B and W are alike, and what is left of the call's advantage is noise: it counts
little. Where they decide, W is small beside B, and the call counts in full. 1 - W / B is the share of B that is
no chance, by the one-way analysis of variance with random effects; shrinking by it is James and Stein's (1961).
The same replies are told by their tokens, or, if none was given twice, by the next state that they led to.
Where that tells nothing either, w is `unknown`.

Assumes nothing for w: no rollout has a part in its own, so with own = 1 the expected gradient of each state is
the true one times a number from 0 to 1. It is the states' weights that differ. With own < 1 it assumes what
`tabular` does. With free text, and next states that tell nothing, it is `tabular` without its effects.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from lightning_core.credit.base import EPSILON, Comparison
from lightning_core.credit.table import Table
from lightning_core.credit.visits import State, Visit
from lightning_core.errors import ConfigError
from lightning_core.types import Trajectory


@dataclass(frozen=True, slots=True)
class Relevance:
    """Advantages from a table of the group, weighed by what replies have to do with returns."""

    own: float = 0.5
    """The share of the rollout's own return in what came of a call."""
    unknown: float = 0.5
    """The weight of a state of which nothing is known."""

    def __post_init__(self) -> None:
        for option in ("own", "unknown"):
            if not 0 <= getattr(self, option) <= 1:
                raise ConfigError(f"{self!r}: {option} must lie between 0 and 1")

    def __call__(self, group: Sequence[Trajectory]) -> list[Comparison]:
        """One comparison: all advantages of the group."""
        if len(group) < 2:
            return []
        table = Table(group)
        said = Said(table)
        advantages = tuple(
            {v.transition.key: self._weigh(v, place, table, said) for v in found}
            for place, found in enumerate(table.visits)
        )
        return [Comparison(advantages, baseline=False)]

    def _weigh(self, visit: Visit, place: int, table: Table, said: Said) -> float:
        weight = said.relevance(visit.state, place)
        advantage = self._came_to(visit, place, table) - table.expected(visit, place)
        return (self.unknown if weight is None else weight) * advantage

    def _came_to(self, visit: Visit, place: int, table: Table) -> float:
        returned, following = table.returned(visit, place), visit.following
        if following is None:
            return returned
        known = table.known(following.state, place, visit.transition.agent)
        if known is None:
            return returned
        return self.own * returned + (1 - self.own) * (visit.earned - following.earned + known)


class Said:
    """What rollouts said in each state, and what they came to."""

    def __init__(self, table: Table) -> None:
        self._said: defaultdict[State, list[Saying]] = defaultdict(list)
        self._found: dict[tuple[State, int], float | None] = {}
        for place, found in enumerate(table.visits):
            for visit in found:
                if visit.state is not None:
                    saying = Saying(
                        place,
                        tuple(visit.transition.completion_ids),
                        visit.following.state if visit.following else None,
                        table.returned(visit, place),
                    )
                    self._said[visit.state].append(saying)

    def relevance(self, state: State | None, place: int) -> float | None:
        """Of what all rollouts but one said in a state; None if that does not tell."""
        if state is None:
            return None
        if (state, place) not in self._found:
            others = [saying for saying in self._said[state] if saying.place != place]
            by_reply = relevance(_sort((each.place, each.reply, each.returned) for each in others))
            by_next = relevance(_sort((each.place, each.following, each.returned) for each in others))
            self._found[state, place] = by_next if by_reply is None else by_reply
        return self._found[state, place]


@dataclass(frozen=True, slots=True)
class Saying:
    """A reply given in a state."""

    place: int
    reply: tuple[int, ...]
    following: State | None
    returned: float


def relevance(returns: Sequence[Sequence[float]]) -> float | None:
    """max(0, 1 - W / B) of returns sorted by reply; None if there is one reply only, if none was given twice,
    or if all returns are equal."""
    everything = [value for values in returns for value in values]
    count, kinds = len(everything), len(returns)
    if kinds < 2 or count <= kinds:
        return None
    mean, means = fmean(everything), [fmean(values) for values in returns]
    between = sum(len(v) * (m - mean) ** 2 for v, m in zip(returns, means, strict=True)) / (kinds - 1)
    within = sum((x - m) ** 2 for v, m in zip(returns, means, strict=True) for x in v) / (count - kinds)
    if between + within <= EPSILON**2:
        return None
    return max(0.0, 1 - within / between) if between > EPSILON**2 else 0.0


def _sort(sayings: Iterable[tuple[int, Hashable, float]]) -> list[list[float]]:
    """The returns of each kind; a rollout counts once in each, with its mean."""
    kinds: defaultdict[Hashable, defaultdict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for place, kind, returned in sayings:
        kinds[kind][place].append(returned)
    return [[fmean(values) for values in of_kind.values()] for of_kind in kinds.values()]
