"""Relevance credit: a call counts as much as what is said in its place makes a difference.

    A(i, t) = w * A'(i, t)                       A' of `tabular`
    w       = floor + (1 - floor) * max(0, 1 - W / B)

    B       mean square of returns between the different replies that were given in a state
    W       mean square of returns within them

Where replies do not matter B and W are alike, and what a call's advantage holds is noise: it counts little.
Where they decide, W is small beside B, and the call counts in full. 1 - W / B is the share of B that is no
chance, by the one-way analysis of variance with random effects; shrinking by it is James and Stein's (1961).

One w is found for each call of an agent, its first, its second and so on, from the other groups of the batch:
squares are taken within each state of each group and added up. Replies are told apart by their tokens, or,
where none was given twice in a state, by the next state that they led to. Where neither tells anything,
w is `unknown`.

Assumes nothing for w: a group has no part in its own, so with own = 1 the expected gradient of each turn is the
true one times a number between 0 and 1. It is the turns' weights among each other that differ. With own < 1 it
assumes what `tabular` does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import ClassVar

from lightning_core.credit.base import EPSILON, Comparison, Credit
from lightning_core.credit.table import Table, Turn
from lightning_core.credit.tabular import Tabular
from lightning_core.credit.visits import State
from lightning_core.errors import ConfigError
from lightning_core.types import Trajectory


@dataclass(frozen=True, slots=True)
class Relevance:
    """Advantages from a table of the group, weighed by what the rest of the batch tells of each turn."""

    needs_group: ClassVar[bool] = True
    own: float = 0.5
    """The share of the rollout's own return in what came of a call."""
    floor: float = 0.1
    """The weight of a call that seems to make no difference."""
    unknown: float = 0.5
    """The weight of a call of which nothing is known."""

    def __post_init__(self) -> None:
        for option in ("own", "floor", "unknown"):
            if not 0 <= getattr(self, option) <= 1:
                raise ConfigError(f"{self!r}: {option} must lie between 0 and 1")

    def __call__(self, group: Sequence[Trajectory]) -> list[Comparison]:
        """A group without a batch, of which nothing else is known."""
        return self._compare(group, {})

    def of_batch(self, groups: Sequence[Sequence[Trajectory]]) -> Credit:
        """The credit method for the groups of this batch."""
        found = {group[0].group_id: spreads(Table(group)) for group in groups}
        whole: defaultdict[Turn, Spread] = defaultdict(Spread)
        for of_group in found.values():
            for turn, spread in of_group.items():
                whole[turn] += spread

        def credit(group: Sequence[Trajectory]) -> list[Comparison]:
            own = found[group[0].group_id]
            return self._compare(group, {turn: whole[turn] - spread for turn, spread in own.items()})

        return credit

    def _compare(self, group: Sequence[Trajectory], others: Mapping[Turn, Spread]) -> list[Comparison]:
        if len(group) < 2:
            return []
        table, tabular = Table(group), Tabular(self.own)
        weights = {turn: self._weight(spread.chance) for turn, spread in others.items()}
        advantages = (
            {
                visit.transition.key: weights.get(table.turn(visit, place), self.unknown)
                * tabular.advantage(visit, place, table)
                for visit in found
            }
            for place, found in enumerate(table.visits)
        )
        return [Comparison(tuple(advantages), baseline=False)]

    def _weight(self, chance: float | None) -> float:
        return self.unknown if chance is None else self.floor + (1 - self.floor) * max(0.0, 1 - chance)


@dataclass(frozen=True, slots=True)
class Spread:
    """Sums of squares of returns, and their degrees of freedom."""

    between: float = 0.0
    """Of the replies' means from the mean of all, for each return."""
    kinds: int = 0
    """Replies, less one for each state."""
    within: float = 0.0
    """Of returns from the mean of their reply."""
    repeats: int = 0
    """Returns, less one for each reply."""

    def __add__(self, other: Spread) -> Spread:
        return Spread(
            self.between + other.between,
            self.kinds + other.kinds,
            self.within + other.within,
            self.repeats + other.repeats,
        )

    def __sub__(self, other: Spread) -> Spread:
        return self + Spread(-other.between, -other.kinds, -other.within, -other.repeats)

    @property
    def chance(self) -> float | None:
        """W / B: the share of what lies between replies that is chance. None if nothing tells."""
        if not self.kinds or not self.repeats:
            return None
        between, within = self.between / self.kinds, self.within / self.repeats
        return within / between if between > EPSILON**2 else 1.0


def spreads(table: Table) -> dict[Turn, Spread]:
    """Of each turn of a group, added up over the states in which it was."""
    said: defaultdict[tuple[Turn, State], dict[int, Saying]] = defaultdict(dict)
    for place, found in enumerate(table.visits):
        for visit in found:
            if visit.state is not None:
                reply, following = tuple(visit.transition.completion_ids), visit.following
                said[table.turn(visit, place), visit.state].setdefault(
                    place, Saying(table.returned(visit, place), reply, following and following.state)
                )
    added: defaultdict[Turn, Spread] = defaultdict(Spread)
    for (turn, _), sayings in said.items():
        added[turn] += spread_of(list(sayings.values()))
    return dict(added)


@dataclass(frozen=True, slots=True)
class Saying:
    """A reply given in a state."""

    returned: float
    reply: tuple[int, ...]
    following: State | None


def spread_of(sayings: Sequence[Saying]) -> Spread:
    """Of what was said in one state; nothing if all returns are equal, or if no reply can be compared."""
    returns = [saying.returned for saying in sayings]
    kinds = _sort(returns, [saying.reply for saying in sayings])
    if len(kinds) == len(sayings):
        kinds = _sort(returns, [saying.following for saying in sayings])
    if len(kinds) in (1, len(sayings)) or max(returns) - min(returns) <= EPSILON:
        return Spread()
    mean, means = fmean(returns), [fmean(values) for values in kinds]
    return Spread(
        between=sum(len(values) * (own - mean) ** 2 for values, own in zip(kinds, means, strict=True)),
        kinds=len(kinds) - 1,
        within=sum((value - own) ** 2 for values, own in zip(kinds, means, strict=True) for value in values),
        repeats=len(returns) - len(kinds),
    )


def _sort(returns: Sequence[float], kinds: Sequence[Hashable]) -> list[list[float]]:
    sorted_out: defaultdict[Hashable, list[float]] = defaultdict(list)
    for value, kind in zip(returns, kinds, strict=True):
        sorted_out[kind].append(value)
    return list(sorted_out.values())
