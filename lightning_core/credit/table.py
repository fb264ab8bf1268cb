"""A group's visits as a table of what states came to; each look-up leaves one rollout out.

Leaving a rollout out keeps its own luck out of what it is measured by. A rollout counts once in every entry,
with the mean over its visits. A place is a rollout's index in the group.

A visit is a call of a rollout as a state, with the next state that it led to. A state is what an agent was
shown: its name and the digest of its observation. The next state of a call is the next call of the rollout
during which no other call ran: calls that overlap can't have led to one another, and what they did together
shows only once they are all done. Only calls of trained agents are visits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TypeVar

from lightning_core.credit.base import total_return, turn_numbers
from lightning_core.credit.branches import reward_without_call
from lightning_core.types import Trajectory, Transition

State = tuple[str, str]
"""Agent and observation."""


@dataclass(frozen=True, slots=True)
class Visit:
    """A trained transition among the states of its rollout."""

    transition: Transition
    state: State | None
    """None if the observation is not known."""
    earned: float
    """Intermediate rewards of this call and of those after it, whoever made them."""
    following: Visit | None
    """The next state of the rollout; None at the end."""


def visits(trajectory: Trajectory) -> list[Visit]:
    """One for each trained transition, in the order their calls began."""
    calls: dict[str, list[Transition]] = {}
    for t in trajectory.transitions:
        calls.setdefault(t.call_id, []).append(t)
    alone = _alone([call[0] for call in calls.values() if call[0].trained])
    found: list[Visit] = []
    earned, following = 0.0, None
    for choices in reversed(calls.values()):
        earned += choices[0].reward
        here = [Visit(t, _state(t), earned, following) for t in choices if t.trained]
        found += reversed(here)
        if here and here[0].state is not None and choices[0].call_id in alone:
            following = here[0]
    return found[::-1]


def _state(transition: Transition) -> State | None:
    return (transition.agent, transition.observation) if transition.observation else None


def _alone(calls: Sequence[Transition]) -> set[str]:
    """The calls during which no other of them ran; those whose times are not known took no time."""
    spans = [(t.started_at or 0.0, t.ended_at or t.started_at or 0.0, t.call_id) for t in calls]
    if any(t.started_at is None for t in calls):
        return {t.call_id for t in calls}
    busy_until, alone = float("-inf"), set[str]()
    for place, (start, end, call_id) in enumerate(spans):
        if start >= busy_until and all(later >= end for later, _, _ in spans[place + 1 : place + 2]):
            alone.add(call_id)
        busy_until = max(busy_until, end)
    return alone


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
