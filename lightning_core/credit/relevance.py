"""Relevance credit: a call counts as much as what is said in its place makes a difference.

    A(i, t) = w * (own * G(i, t) + (1 - own) * (r + V(next state)) - V(state))

    G, V, r  as in `tabular`: the return from t on; what the group's others came to from a state; the reward
             until the next
    w        F(replies in a state): do they make a difference?
    own      F(replies in a state that led to the same next state): do they make one that it does not show?
    F        floor + (1 - floor) * max(0, 1 - W / B)
    B, W     mean square of returns between the different replies, and within them

Where replies do not matter B and W are alike, and what a call's advantage holds is noise: it counts little.
Where they decide, W is small beside B, and the call counts in full. 1 - W / B is the share of B that is no
chance, by the one-way analysis of variance with random effects; shrinking by it is James and Stein's (1961).

Each call of an agent, its first, its second and so on, has a w and an own, found in all other rollouts of the
batch: squares are taken within every state of every group and added up. The rollout's own group counts in
full and other groups with weight `others`, because which call decides may depend on the task. Replies are
told apart by their tokens. Where none was given twice in a state, w is found by the next states instead.
Where B and W are 0, as all earn the same in every state, F is `floor`. A group counts for a turn if its
returns there differ. To own, all turns of the agent add what they tell, with the weight of one degree of
freedom. Where nothing can be told, w is `unknown` and own 1: the return is kept whole.

Assumes nothing for w: a rollout has no part in its own, so that alone would make the expected gradient of
each turn the true one times a number between 0 and 1. It is the turns' weights among each other that differ.
A difference that a next state hides and other rollouts do not show counts no less than `floor`.

Close to it: ECPO (arXiv 2606.05885) gates credit by variance.

`Spread` has the returns between replies and within them, as an analysis of variance that adds up:

    B = between / kinds        W = within / repeats        relevance = max(0, 1 - W / B)

With random effects E[B] is E[W] and what the replies themselves make for, so 1 - W / B estimates their share.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from statistics import fmean
from typing import ClassVar, TypeVar

from lightning_core.credit.base import EPSILON, Comparison, Credit, Part
from lightning_core.credit.tabular import State, Turn, Visit, VisitTable, advantage, of_table
from lightning_core.ranges import check_range
from lightning_core.records.types import Trajectory

Entry = TypeVar("Entry")
FEWEST = 3
"""Rollouts in a state that can tell something: two with the same reply, and one with another."""


@dataclass(frozen=True, slots=True)
class Relevance:
    """Advantages from a table of the group, weighed by what the rest of the batch tells of each turn."""

    needs_group: ClassVar[bool] = True
    floor: float = 0.2
    """The least weight: of a call, and of the rollout's own return in what came of a call."""
    unknown: float = 0.5
    """The weight of a call of which nothing is known."""
    others: float = 0.3
    """How much other groups tell of a turn, beside the other rollouts of the own group."""

    def __post_init__(self) -> None:
        for option in ("floor", "unknown", "others"):
            check_range(option, getattr(self, option), of="Relevance", least=0, most=1)

    def __call__(self, group: Sequence[Trajectory]) -> list[Comparison]:
        """A group without a batch, of which nothing else is known."""
        return self._compare(VisitTable(group), {})

    def of_batch(self, groups: Sequence[Sequence[Trajectory]]) -> Credit:
        """The credit method for the groups of this batch."""
        tables = {group[0].group_id: VisitTable(group) for group in groups}
        others = learnt_elsewhere({name: learn(table) for name, table in tables.items()})

        def credit(group: Sequence[Trajectory]) -> list[Comparison]:
            own = group[0].group_id
            return self._compare(tables[own], others[own])

        return credit

    def _compare(self, table: VisitTable, others: Mapping[Turn, Learnt]) -> list[Comparison]:
        if len(table.visits) < 2:
            return []
        known = list(self.known(table, others))
        return [of_table(table, lambda visit, place: self._weigh(visit, place, table, known[place]))]

    def known(self, table: VisitTable, others: Mapping[Turn, Learnt]) -> Iterator[dict[Turn, Learnt]]:
        """For each rollout of a group: what all the other rollouts of the batch tell of each turn."""
        theirs = {turn: learnt * self.others for turn, learnt in others.items()}
        for learnt in learn_without(table, range(len(table.visits))):
            known = add_learnt((theirs, learnt))
            usual = usually_hidden(known)
            yield {
                turn: replace(each, hidden=each.hidden + usual.get(turn[0], Spread()))
                for turn, each in known.items()
            }

    def _weigh(
        self, visit: Visit, place: int, table: VisitTable, known: Mapping[Turn, Learnt]
    ) -> tuple[Part, ...]:
        learnt = known.get(table.turn(visit, place), Learnt())
        weight = self._raised(learnt.replies.relevance, self.unknown)
        parts = advantage(visit, place, table, own=self._raised(learnt.hidden.relevance, 1.0))
        return tuple(part._replace(factor=weight * part.factor) for part in parts)

    def _raised(self, relevance: float | None, unknown: float) -> float:
        return unknown if relevance is None else self.floor + (1 - self.floor) * relevance


@dataclass(frozen=True, slots=True)
class Spread:
    """Sums of squares of returns, and their degrees of freedom."""

    between: float = 0.0
    """Variation of the replies' means around the mean of all, for each return."""
    kinds: float = 0
    """Replies, less one for each state."""
    within: float = 0.0
    """Variation of returns around the mean of their reply."""
    repeats: float = 0
    """Returns, less one for each reply."""

    def __add__(self, other: Spread) -> Spread:
        return Spread(
            self.between + other.between,
            self.kinds + other.kinds,
            self.within + other.within,
            self.repeats + other.repeats,
        )

    def __mul__(self, share: float) -> Spread:
        return Spread(share * self.between, share * self.kinds, share * self.within, share * self.repeats)

    @property
    def relevance(self) -> float | None:
        """max(0, 1 - W / B): the share of B that is no chance. None if nothing tells."""
        if not self.kinds or not self.repeats:
            return None
        between, within = self.between / self.kinds, self.within / self.repeats
        return max(0.0, 1 - within / between) if between > EPSILON**2 else 0.0


def spread_of(returns: Sequence[Sequence[float]]) -> Spread:
    """Measures the returns of each reply; empty if there is one reply only, or if none was given twice."""
    everything = [value for values in returns for value in values]
    if len(returns) in (1, len(everything)):
        return Spread()
    mean = fmean(everything)
    means = [fmean(values) for values in returns]
    return Spread(
        between=sum(len(values) * (own - mean) ** 2 for values, own in zip(returns, means, strict=True)),
        kinds=len(returns) - 1,
        within=sum(
            (value - own) ** 2 for values, own in zip(returns, means, strict=True) for value in values
        ),
        repeats=len(everything) - len(returns),
    )


def sort_out(entries: Iterable[tuple[Hashable, Entry]]) -> list[list[Entry]]:
    """Entries of the same kind together."""
    kinds: defaultdict[Hashable, list[Entry]] = defaultdict(list)
    for kind, entry in entries:
        kinds[kind].append(entry)
    return list(kinds.values())


@dataclass(frozen=True, slots=True)
class Learnt:
    """The evidence of groups about a turn."""

    replies: Spread = Spread()
    """Spread of returns by the reply given in a state."""
    hidden: Spread = Spread()
    """Spread of returns by the reply given in a state, among those that led to the same next state."""

    def __add__(self, other: Learnt) -> Learnt:
        return Learnt(self.replies + other.replies, self.hidden + other.hidden)

    def __mul__(self, share: float) -> Learnt:
        return Learnt(self.replies * share, self.hidden * share)


@dataclass(frozen=True, slots=True)
class Saying:
    """A reply given in a state, and what came of it."""

    returned: float
    reply: tuple[int, ...]
    following: State | None


def add_learnt(parts: Iterable[Mapping[Turn, Learnt]]) -> dict[Turn, Learnt]:
    """Adds up the evidence of each turn."""
    whole: defaultdict[Turn, Learnt] = defaultdict(Learnt)
    for part in parts:
        for turn, learnt in part.items():
            whole[turn] += learnt
    return dict(whole)


def learnt_elsewhere(found: Mapping[str, Mapping[Turn, Learnt]]) -> dict[str, dict[Turn, Learnt]]:
    """For each group what all others tell of each turn. Time grows with the groups, not with their pairs."""
    telling: defaultdict[Turn, list[str]] = defaultdict(list)
    for name, learnt in found.items():
        for turn in learnt:
            telling[turn].append(name)
    elsewhere: dict[str, dict[Turn, Learnt]] = {name: {} for name in found}
    for turn, names in telling.items():
        told = [found[name][turn] for name in names]
        before = list(accumulate(told, initial=Learnt()))
        after = list(accumulate(reversed(told), initial=Learnt()))[::-1]
        for name in found:
            elsewhere[name][turn] = before[-1]
        for place, name in enumerate(names):
            elsewhere[name][turn] = before[place] + after[place + 1]
        if len(names) == 1:  # no entry: even an empty one would tell the group of its own returns
            del elsewhere[names[0]][turn]
    return elsewhere


def usually_hidden(known: Mapping[Turn, Learnt]) -> dict[str, Spread]:
    """Returns `hidden` of all turns of an agent together, as one degree of freedom between replies."""
    whole: defaultdict[str, Spread] = defaultdict(Spread)
    for (agent, _), learnt in known.items():
        whole[agent] += learnt.hidden
    return {agent: spread * (1 / spread.kinds) for agent, spread in whole.items() if spread.kinds}


def learn(table: VisitTable, without: int | None = None) -> dict[Turn, Learnt]:
    """Returns a group's evidence about each turn, from all rollouts or without one."""
    (learnt,) = learn_without(table, (without,))
    return learnt


def learn_without(table: VisitTable, places: Iterable[int | None]) -> Iterator[dict[Turn, Learnt]]:
    """Yields a group's evidence about each turn without each of these rollouts. A state's evidence is the
    same without any of the rollouts with the same reply there. It is the whole group's without a rollout that
    never reached the state."""
    said = said_in(table)
    told: defaultdict[tuple[Turn, State], dict[Saying | None, Learnt]] = defaultdict(dict)
    for without in places:
        learnt: defaultdict[Turn, Learnt] = defaultdict(Learnt)
        returns: defaultdict[Turn, list[float]] = defaultdict(list)
        for label, sayings in said.items():
            left = [saying for place, saying in sayings.items() if place != without]
            returns[label[0]] += [saying.returned for saying in left]
            if len(left) >= FEWEST:
                lacking = None if without is None else sayings.get(without)
                if lacking not in told[label]:
                    told[label][lacking] = learn_from(left)
                learnt[label[0]] += told[label][lacking]
        yield {
            turn: each for turn, each in learnt.items() if max(returns[turn]) - min(returns[turn]) > EPSILON
        }


def said_in(table: VisitTable) -> dict[tuple[Turn, State], dict[int, Saying]]:
    """Returns each rollout's reply in each state, by its place; one reply of a rollout in a turn."""
    said: defaultdict[tuple[Turn, State], dict[int, Saying]] = defaultdict(dict)
    for place, found in enumerate(table.visits):
        for visit in found:
            if visit.state is not None:
                reply, following = tuple(visit.transition.completion_ids), visit.following
                saying = Saying(table.returned(visit, place), reply, following.state if following else None)
                said[table.turn(visit, place), visit.state].setdefault(place, saying)
    return dict(said)


def learn_from(sayings: Sequence[Saying]) -> Learnt:
    """Returns the evidence of the replies in one state."""
    replies = sort_out((each.reply, each.returned) for each in sayings)
    following = sort_out((each.following, each) for each in sayings)
    if len(replies) == len(sayings):
        by_next = [[each.returned for each in led] for led in following]
        return Learnt(spread_of(by_next))
    hidden = Spread()
    for led in following:
        hidden += spread_of(sort_out((each.reply, each.returned) for each in led))
    return Learnt(spread_of(replies), hidden)
