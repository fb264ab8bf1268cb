"""A group's visits as a table of what states and replies came to; each look-up leaves one rollout out.

Leaving a rollout out keeps its own luck out of what it is measured by. A rollout counts once in every entry,
with the mean over its visits. A place is a rollout's index in the group.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TypeVar

from lightning_core.credit.base import total_return
from lightning_core.credit.branches import reward_without_call
from lightning_core.credit.finals import EPSILON
from lightning_core.credit.peers import turn_numbers
from lightning_core.credit.visits import State, Visit, visits
from lightning_core.types import Trajectory

Reply = tuple[int, ...]
Label = State | tuple[str, int]
"""A state, or an agent and which of its calls it is."""
Step = tuple[State | None, State | None]
"""A state and the next."""
Entry = TypeVar("Entry")


class Table:
    """The returns of a group's rollouts, by state, by agent and by reply."""

    def __init__(self, group: Sequence[Trajectory]) -> None:
        self.visits = [visits(trajectory) for trajectory in group]
        self._group = group
        self._aside = [reward_without_call(trajectory) for trajectory in group]
        earned: defaultdict[Label, dict[int, list[float]]] = defaultdict(dict)
        replies: defaultdict[Step, dict[tuple[int, Reply], list[float]]] = defaultdict(dict)
        self._turns = [turn_numbers(trajectory) for trajectory in group]
        for place, found in enumerate(self.visits):
            for v in found:
                earned[self._turn(v, place)].setdefault(place, []).append(v.earned)
                if v.state is not None:
                    earned[v.state].setdefault(place, []).append(v.earned)
                replies[_step(v)].setdefault((place, _reply(v)), []).append(v.earned)
        self._earned = {label: _means(of_label) for label, of_label in earned.items()}
        self._replies = {step: _means(of_step) for step, of_step in replies.items()}

    def returned(self, visit: Visit, place: int) -> float:
        """What the rollout itself earned from this visit on."""
        return visit.earned + self._final(place, visit.transition.agent)

    def expected(self, visit: Visit, place: int) -> float:
        """What others earned from this state on; with one more among them who earned what is usual then."""
        agent = visit.transition.agent
        usual = self._others(self._turn(visit, place), place, agent)
        if not usual:
            usual = [total_return(each, agent) for at, each in enumerate(self._group) if at != place]
        same = self._others(visit.state, place, agent)
        return fmean([*same, fmean(usual)]) if usual else 0.0

    def known(self, state: State | None, place: int, agent: str) -> float | None:
        """What others earned from a state on, by an agent's final reward; None if no other came to it."""
        same = self._others(state, place, agent)
        return fmean(same) if same else None

    def effect(self, visit: Visit, place: int) -> float:
        """How much better than the others who came from the same state to the same next one were those who
        gave this very reply; 0 as far as that may be chance."""
        agent = visit.transition.agent
        returns: defaultdict[Reply, list[float]] = defaultdict(list)
        for (other, reply), earned in self._replies[_step(visit)].items():
            if other != place:
                returns[reply].append(earned + self._final(other, agent))
        return shrunken_effects(returns).get(_reply(visit), 0.0)

    def _turn(self, visit: Visit, place: int) -> Label:
        return visit.transition.agent, self._turns[place][visit.transition.key]

    def _final(self, place: int, agent: str) -> float:
        return self._group[place].final(agent) + self._aside[place]

    def _others(self, label: Label | None, place: int, agent: str) -> list[float]:
        found = {} if label is None else self._earned.get(label, {})
        return [earned + self._final(other, agent) for other, earned in found.items() if other != place]


def shrunken_effects(returns: Mapping[Reply, Sequence[float]]) -> dict[Reply, float]:
    """How far the mean return of each reply is from the mean of all, shrunken by what may be chance of it:

        effect = (mean_a - mean) * B / (B + W / n_a)

    with W the variance within replies and B that between them, as estimated from a random-effects analysis of
    variance. Nothing can be told of chance, so nothing is said, where no reply was given twice.
    """
    everything = [value for values in returns.values() for value in values]
    count, kinds = len(everything), len(returns)
    if kinds < 2 or count <= kinds:
        return {}
    mean = fmean(everything)
    means = {reply: fmean(values) for reply, values in returns.items()}
    within = sum((v - means[a]) ** 2 for a, values in returns.items() for v in values) / (count - kinds)
    between = sum(len(values) * (means[a] - mean) ** 2 for a, values in returns.items()) / (kinds - 1)
    even = (count - sum(len(values) ** 2 for values in returns.values()) / count) / (kinds - 1)
    spread = max(0.0, (between - within) / even)
    if spread <= EPSILON**2:
        return {}
    return {
        reply: (means[reply] - mean) * spread / (spread + within / len(values))
        for reply, values in returns.items()
    }


def _means(values: Mapping[Entry, Sequence[float]]) -> dict[Entry, float]:
    return {label: fmean(found) for label, found in values.items()}


def _step(visit: Visit) -> Step:
    return visit.state, visit.following.state if visit.following else None


def _reply(visit: Visit) -> Reply:
    return tuple(visit.transition.completion_ids)
