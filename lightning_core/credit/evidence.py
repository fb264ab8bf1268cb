"""Evidence credit: `uniform`, changed only as far as the other groups of the batch show that it helps.

    A(i, t) = w * (G(i, t) - share * (G(next) - V(next)) - b(i, t))

    G        the rewards from t on; the whole return where that varies less about its baseline
    b        the mean of the group's others, the more of them that were in the same state, the more by these:
                 b = (n_s m_s + k_s (n_t m_t + k_t m) / (n_t + k_t)) / (n_s + k_s)
             m, m_t, m_s: of whole returns, of G at that turn, of G in that state; n: of so many others
    V(next)  the mean of all rollouts in the next state, this one too; share is 0 or 1
    w        the probability that the reply at this turn makes a difference (`significance.matters`)

Every choice for a group is made by the other groups: k_s, k_t and G by the least squared error of b; share is
1 where pairs of equal replies show that the next state tells what the reply did, beyond the error of that
estimate; w by the same pairs. So no rollout has a part in how its own group is weighed, and a baseline of
others only turns no gradient: the estimate of each turn is the true one times a factor, up to what V hides.
Without evidence, as in a batch of one group, it is `uniform` with a leave-one-out baseline.

Errors and means are weighed by the size of the call's score, as the sum of 1 - p over its tokens: a reply
that was certain has no gradient. A baseline of least variance is the mean so weighed (Greensmith, Bartlett
and Baxter 2004), not the mean of returns. V(next) in the place of what came after it is Rao-Blackwell's.
Choosing by what was left out is cross-fitting (Chernozhukov et al., arXiv 1608.00060).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import pstdev
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from lightning_core.credit.base import (
    AFTER,
    EPSILON,
    EXPECTED,
    FROM_HERE,
    UNTIL,
    WHOLE,
    Comparison,
    Credit,
    Part,
)
from lightning_core.credit.significance import Floats, PairSums, Whole, between_groups, matters, pairs_within
from lightning_core.credit.tabular import Turn, Visit, VisitTable, of_table
from lightning_core.credit.whole import by_return
from lightning_core.experience.returns import total_return
from lightning_core.ranges import check_range
from lightning_core.records.types import Key, Trajectory

BELIEF = (1e9, 16.0, 8.0, 4.0, 2.0, 1.0, 0.5)
"""Values of k_t and k_s: how many rollouts the wider mean counts as. The first leaves out the narrower."""
SURE = 0.5
"""Standard deviations by which the next state must be shown to tell what a reply did."""
NONE = -1
"""The next call of a call without one."""
OWN_SCORE = 1e-3
"""Added to the size of a score, so that certain replies have a mean too."""


@dataclass(frozen=True, slots=True)
class BatchEvidence:
    """Uniform credit, with what other groups show of baselines, next states and turns."""

    needs_group: ClassVar[bool] = True
    floor: float = 0.02
    """The least weight of a call."""

    def __post_init__(self) -> None:
        check_range("floor", self.floor, of="BatchEvidence", least=0, most=1)

    def __call__(self, group: Sequence[Trajectory]) -> list[Comparison]:
        """A group without a batch, of which nothing else is known."""
        return list(self.of_batch([group])(group))

    def of_batch(self, groups: Sequence[Sequence[Trajectory]]) -> Credit:
        """The credit method for the groups of this batch."""
        calls = [GroupCalls(group) for group in groups]
        number_alike(calls)
        compared = _with_baselines(calls)
        known = _without_luck(calls, compared)
        weights = _weigh(calls, known)
        found = {
            c.name: c.comparisons(of_one, told, np.maximum(weight, self.floor))
            for c, of_one, told, weight in zip(calls, compared, known, weights, strict=True)
        }
        return lambda group: found[group[0].group_id]


class GroupCalls:
    """The trained calls of a group as arrays (E,), in the order of its rollouts."""

    def __init__(self, group: Sequence[Trajectory]) -> None:
        self.name = group[0].group_id
        self.table = VisitTable(group)
        self._group = group
        placed = [(place, visit) for place, found in enumerate(self.table.visits) for visit in found]
        self.visits = [visit for _, visit in placed]
        self.place = np.array([place for place, _ in placed], dtype=np.int64)
        self.turns: list[Turn] = [self.table.turn(visit, place) for place, visit in placed]
        at = {visit.transition.key: number for number, visit in enumerate(self.visits)}
        self.next = np.array(
            [at[v.following.transition.key] if v.following else NONE for v in self.visits], dtype=np.int64
        )
        self.returned = np.array([self.table.returned(visit, place) for place, visit in placed])
        whole = {agent: [total_return(each, agent) for each in group] for agent in {a for a, _ in self.turns}}
        self.whole = np.array(
            [whole[agent][place] for (place, _), (agent, _) in zip(placed, self.turns, strict=True)]
        )
        self.others_whole = np.array(
            [
                (sum(whole[agent]) - whole[agent][place]) / max(len(group) - 1, 1)
                for (place, _), (agent, _) in zip(placed, self.turns, strict=True)
            ]
        )
        units = {agent: pstdev(returns) for agent, returns in whole.items()}
        self.per_unit = np.array([1 / units[a] if units[a] > EPSILON else 0.0 for a, _ in self.turns])
        self.size = np.array([_score_size(visit) for visit in self.visits]) + OWN_SCORE
        self.state = _numbers(
            [
                (turn, visit.state[:2] if visit.state else number)
                for number, (turn, visit) in enumerate(zip(self.turns, self.visits, strict=True))
            ]
        )
        self.turn = self.reply = np.zeros(0, np.int64)
        """Keyed by the numbers of the whole batch."""
        _, first = np.unique(np.stack([self.place, _numbers(self.turns)]), axis=1, return_index=True)
        self.once = np.sort(first)
        """One call of each rollout at each turn."""

    def others(self, label: Whole, value: Floats, size: Floats) -> tuple[Whole, Floats]:
        """How many other rollouts have a call with the same label, and the mean of its value over them, each
        rollout once, by the size of its call."""
        pairs, of = np.unique(np.stack([label, self.place]), axis=1, return_inverse=True)
        of = of.ravel()
        sizes = np.bincount(of, size) / np.bincount(of)
        values = np.bincount(of, size * value) / np.bincount(of, size)
        labels, count = pairs[0], np.bincount(pairs[0])
        number = (count[labels] - 1)[of]
        left = (np.bincount(labels, sizes)[labels] - sizes)[of]
        total = (np.bincount(labels, sizes * values)[labels] - sizes * values)[of]
        mean = np.where(number > 0, total / np.where(number > 0, left, 1.0), 0.0)
        return number, mean

    def after(self) -> tuple[Whole, Floats, Floats]:
        """For each call how many others came to its next state, what they earned from there, and what its own
        rollout did; by the final reward of the agent that made the call."""
        number, others, own = (
            np.zeros(len(self.place), np.int64),
            np.zeros(len(self.place)),
            np.zeros(len(self.place)),
        )
        earned = np.array([visit.earned for visit in self.visits])
        led = self.next != NONE
        for agent in sorted({agent for agent, _ in self.turns}):
            mine = np.array([each == agent for each, _ in self.turns]) & led
            returned = earned + np.array(self.table.final(agent))[self.place]
            count, mean = self.others(self.state, returned, np.ones(len(earned)))
            number[mine], others[mine], own[mine] = (
                count[self.next[mine]],
                mean[self.next[mine]],
                returned[self.next[mine]],
            )
        return number, others, own

    def pairs(self, x: Floats, y: Floats, turns: int) -> PairSums:
        """`pairs_within`, of so many turns of the batch."""
        state = np.unique(self.state[self.once], return_inverse=True)[1]
        return pairs_within(
            x[self.once], y[self.once], self.turn[self.once], state, self.reply[self.once], turns
        )

    def comparisons(self, compared: Baselined, known: Advantages, weights: Floats) -> list[Comparison]:
        """All advantages of the group; none where all whole returns are equal."""
        if not self.per_unit.any():
            return []
        number, others, own = self.after()
        parts: dict[Key, tuple[Part, ...]] = {}
        for i, visit in enumerate(self.visits):
            weight, expected = float(weights[self.turn[i]]), Part(EXPECTED, float(compared.baseline[i]), -1.0)
            share = known.share * number[i] / (number[i] + 1)
            made = [
                Part(
                    FROM_HERE if compared.from_here else WHOLE, float(compared.returns[i]), float(1 - share)
                ),
                expected,
            ]
            if share:
                until = Part(UNTIL, float(compared.returns[i] - own[i]), float(share))
                made[1:1] = [until, Part(AFTER, float(others[i]), float(share))]
            parts[visit.transition.key] = tuple(part._replace(factor=weight * part.factor) for part in made)
        made_of = of_table(self.table, lambda visit, _: parts[visit.transition.key])
        return [replace(made_of, measured=by_return(self._group).peers)]


def number_alike(calls: Sequence[GroupCalls]) -> None:
    """Give the turns and replies of a batch the same numbers in all groups."""
    turns: dict[Hashable, int] = {}
    replies: dict[Hashable, int] = {}
    for each in calls:
        each.turn = np.array([turns.setdefault(turn, len(turns)) for turn in each.turns], dtype=np.int64)
        said = [tuple(visit.transition.completion_ids) for visit in each.visits]
        each.reply = np.array([replies.setdefault(reply, len(replies)) for reply in said], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Baselined:
    """The features by which the calls of a group are compared."""

    returns: Floats
    baseline: Floats
    from_here: bool
    """Whether the returns are those from the call on."""


@dataclass(frozen=True, slots=True)
class Advantages:
    """The advantages of a group in units of its returns, and whether next states stand for later luck."""

    advantages: Floats
    share: float


def _with_baselines(calls: Sequence[GroupCalls]) -> list[Baselined]:
    """Returns and baselines of each group, with the beliefs of the other groups' least error."""
    by_turn = [[_whole(c), *_believed(c, c.turn, c.others_whole)] for c in calls]
    wide = _best(calls, by_turn)
    by_state = [
        [each, *(_believed(c, c.state, each.baseline)[1:] if each.from_here else [])]
        for c, each in zip(calls, wide, strict=True)
    ]
    return _best(calls, by_state)


def _whole(calls: GroupCalls) -> Baselined:
    """`uniform`'s comparison; without intermediate rewards, the whole return is that from any call on."""
    return Baselined(calls.whole, calls.others_whole, bool(np.allclose(calls.whole, calls.returned)))


def _believed(calls: GroupCalls, label: Whole, wider: Floats) -> list[Baselined]:
    """The baselines of each belief in the mean of the label, beside a wider one."""
    number, mean = calls.others(label, calls.returned, calls.size)
    return [
        Baselined(calls.returned, (number * mean + belief * wider) / (number + belief), from_here=True)
        for belief in BELIEF
    ]


def _best(calls: Sequence[GroupCalls], choices: Sequence[Sequence[Baselined]]) -> list[Baselined]:
    """For each group the choice with the least error in the other groups; the first of equals."""
    most = max(map(len, choices))
    errors = np.array(
        [
            [_error(c, of_one[min(number, len(of_one) - 1)]) for number in range(most)]
            for c, of_one in zip(calls, choices, strict=True)
        ]
    )
    left = errors.sum(0) - errors
    left[:, 1:] += 1e-9  # of equals the first, whatever the order of a sum
    return [
        of_one[min(int(np.argmin(row)), len(of_one) - 1)] for of_one, row in zip(choices, left, strict=True)
    ]


def _error(calls: GroupCalls, compared: Baselined) -> float:
    return float((calls.size * ((compared.returns - compared.baseline) * calls.per_unit) ** 2).sum())


def _without_luck(calls: Sequence[GroupCalls], compared: Sequence[Baselined]) -> list[Advantages]:
    """The advantages of each group, without the luck after the next state where the other groups show that
    the next state tells what a reply did."""
    turns = 1 + max((int(c.turn.max(initial=-1)) for c in calls), default=-1)
    plain = [(each.returns - each.baseline) * c.per_unit for c, each in zip(calls, compared, strict=True)]
    luck, hidden, whole = [], [], []
    for c, advantages in zip(calls, plain, strict=True):
        number, others, own = c.after()
        apart = np.where(number > 0, own - others, 0.0) * c.per_unit
        luck.append(number / (number + 1) * apart)
        replaced = np.bincount(c.turn, np.abs(apart), turns) > 0
        hidden.append(_summed(c.pairs(apart, advantages, turns), replaced))
        whole.append(_summed(c.pairs(advantages, advantages, turns), replaced))
    found = []
    for place, advantages in enumerate(plain):
        lost, signal = _without(hidden, place), _without(whole, place)
        kept = signal.total - lost.total
        shown = kept > SURE * np.sqrt(signal.variance) and lost.total + SURE * np.sqrt(lost.variance) < kept
        share = float(bool(shown) and compared[place].from_here)
        found.append(Advantages(advantages - share * luck[place], share))
    return found


def _weigh(calls: Sequence[GroupCalls], known: Sequence[Advantages]) -> list[Floats]:
    """For each group the weight of each turn of the batch, by the other groups."""
    turns = 1 + max((int(c.turn.max(initial=-1)) for c in calls), default=-1)
    within = [c.pairs(each.advantages, each.advantages, turns) for c, each in zip(calls, known, strict=True)]
    between = [between_groups(sums) for sums in _sums_of_replies(calls, known, turns)]
    weights = []
    for place in range(len(calls)):
        own = _without(within, place)
        total = np.array([float(of_turn[place].total) for of_turn in between])
        others = PairSums(total, np.array([float(of_turn[place].variance) for of_turn in between]))
        both = own.known.astype(float) + others.known
        z = (own.z + others.z) / np.sqrt(np.maximum(both, 1.0))
        weights.append(matters(z, both > 0))
    return weights


def _sums_of_replies(
    calls: Sequence[GroupCalls], known: Sequence[Advantages], turns: int
) -> Iterator[Floats]:
    """For each turn (groups, replies): what the calls with a reply were worth, less the mean of the group."""
    group = np.concatenate([np.full(len(c.once), number) for number, c in enumerate(calls)])
    turn = np.concatenate([c.turn[c.once] for c in calls])
    reply = np.concatenate([c.reply[c.once] for c in calls])
    worth = np.concatenate([each.advantages[c.once] for c, each in zip(calls, known, strict=True)])
    for number in range(turns):
        at = turn == number
        kinds, columns = np.unique(reply[at], return_inverse=True)
        count = np.bincount(group[at], minlength=len(calls))
        mean = np.bincount(group[at], worth[at], len(calls)) / np.maximum(count, 1)
        sums = np.zeros((len(calls), len(kinds)))
        np.add.at(sums, (group[at], columns), worth[at] - mean[group[at]])
        yield sums


def _summed(pairs: PairSums, at: NDArray[np.bool_]) -> PairSums:
    return PairSums(pairs.total[at].sum(), pairs.variance[at].sum())


def _without(pairs: Sequence[PairSums], place: int) -> PairSums:
    """The sum of all but one."""
    others = [each for number, each in enumerate(pairs) if number != place]
    return sum(others[1:], others[0]) if others else pairs[place] - pairs[place]


def _numbers(labels: Sequence[Hashable]) -> Whole:
    """Equal labels as equal numbers from 0."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(label, len(numbers)) for label in labels], dtype=np.int64)


def _score_size(visit: Visit) -> float:
    """How far a reply was from certain: the sum of 1 - p over its tokens."""
    return float((1 - np.exp(np.minimum(np.asarray(visit.transition.logprobs, dtype=float), 0.0))).sum())
