"""A group's visits as a table of what states came to; each look-up leaves one rollout out.

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
from lightning_core.credit.peers import turn_numbers
from lightning_core.credit.visits import State, Visit, visits
from lightning_core.types import Trajectory

Turn = tuple[str, int]
"""An agent, and which of its calls it is."""
Label = State | Turn
Entry = TypeVar("Entry")


class Table:
    """The returns of a group's rollouts, by state and by turn."""

    def __init__(self, group: Sequence[Trajectory]) -> None:
        self.visits = [visits(trajectory) for trajectory in group]
        self._group = group
        self._aside = [reward_without_call(trajectory) for trajectory in group]
        earned: defaultdict[Label, dict[int, list[float]]] = defaultdict(dict)
        self._turns = [turn_numbers(trajectory) for trajectory in group]
        for place, found in enumerate(self.visits):
            for v in found:
                earned[self.turn(v, place)].setdefault(place, []).append(v.earned)
                if v.state is not None:
                    earned[v.state].setdefault(place, []).append(v.earned)
        self._earned = {label: _means(of_label) for label, of_label in earned.items()}

    def returned(self, visit: Visit, place: int) -> float:
        """What the rollout itself earned from this visit on."""
        return visit.earned + self._final(place, visit.transition.agent)

    def expected(self, visit: Visit, place: int) -> float:
        """What others earned from this state on; with one more among them who earned what is usual then."""
        agent = visit.transition.agent
        usual = self._others(self.turn(visit, place), place, agent)
        if not usual:
            usual = [total_return(each, agent) for at, each in enumerate(self._group) if at != place]
        same = self._others(visit.state, place, agent)
        return fmean([*same, fmean(usual)]) if usual else 0.0

    def known(self, state: State | None, place: int, agent: str) -> float | None:
        """What others earned from a state on, by an agent's final reward; None if no other came to it."""
        same = self._others(state, place, agent)
        return fmean(same) if same else None

    def turn(self, visit: Visit, place: int) -> Turn:
        """Whose call this is, and which."""
        return visit.transition.agent, self._turns[place][visit.transition.key]

    def _final(self, place: int, agent: str) -> float:
        return self._group[place].final(agent) + self._aside[place]

    def _others(self, label: Label | None, place: int, agent: str) -> list[float]:
        found = {} if label is None else self._earned.get(label, {})
        return [earned + self._final(other, agent) for other, earned in found.items() if other != place]


def _means(values: Mapping[Entry, Sequence[float]]) -> dict[Entry, float]:
    return {label: fmean(found) for label, found in values.items()}
