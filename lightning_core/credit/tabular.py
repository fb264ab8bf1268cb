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

`VisitTable` holds a group's visits as a table of what states came to; each look-up leaves one rollout out.

Leaving a rollout out keeps its own luck out of what it is measured by. A rollout counts once in every entry,
with the mean over its visits. A place is a rollout's index in the group.

A visit is a call of a rollout as a state, with the next state that it led to. A state is what an agent was
shown: its name, the digest of its observation, and how often it was shown that before. The next state of a
call is the next call of the rollout
during which no other call ran: calls that overlap can't have led to one another, and what they did together
shows only once they are all done. Only calls of trained agents are visits.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import ClassVar

from lightning_core.credit.base import (
    AFTER,
    EXPECTED,
    FROM_HERE,
    UNTIL,
    Comparison,
    Part,
    add_parts,
    turn_numbers,
)
from lightning_core.credit.branches import reward_without_call
from lightning_core.experience.returns import total_return
from lightning_core.ranges import check_range
from lightning_core.records.types import Trajectory, Transition

State = tuple[str, str, int]
"""Agent, observation, and how often the rollout had shown it to the agent before."""


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
    states = _states([choices[0] for choices in calls.values()])
    found: list[Visit] = []
    earned, following = 0.0, None
    for choices in reversed(calls.values()):
        earned += choices[0].reward
        here = [Visit(t, states[t.call_id], earned, following) for t in choices if t.trained]
        found += reversed(here)
        if here and here[0].state is not None and choices[0].call_id in alone:
            following = here[0]
    return found[::-1]


def _states(calls: Sequence[Transition]) -> dict[str, State | None]:
    """The state of each call, by its id."""
    shown: Counter[tuple[str, str]] = Counter()
    states: dict[str, State | None] = {}
    for t in calls:
        states[t.call_id] = (t.agent, t.observation, shown[t.agent, t.observation]) if t.observation else None
        shown[t.agent, t.observation] += 1
    return states


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


class VisitTable:
    """The returns of a group's rollouts, by state and by turn."""

    def __init__(self, group: Sequence[Trajectory]) -> None:
        self.visits = [visits(trajectory) for trajectory in group]
        self._group = group
        aside = [reward_without_call(trajectory) for trajectory in group]
        agents = {v.transition.agent for found in self.visits for v in found}
        self._final = {
            agent: [each.final(agent) + beside for each, beside in zip(group, aside, strict=True)]
            for agent in agents
        }
        earned: defaultdict[Label, dict[int, list[float]]] = defaultdict(dict)
        self._turns = [turn_numbers(trajectory) for trajectory in group]
        for place, found in enumerate(self.visits):
            for v in found:
                earned[self.turn(v, place)].setdefault(place, []).append(v.earned)
                if v.state is not None:
                    earned[v.state].setdefault(place, []).append(v.earned)
        self._earned = {
            label: {place: fmean(values) for place, values in of_label.items()}
            for label, of_label in earned.items()
        }

    def returned(self, visit: Visit, place: int) -> float:
        """Returns the rollout's own reward from this visit on."""
        return visit.earned + self._final[visit.transition.agent][place]

    def expected(self, visit: Visit, place: int) -> float:
        """Returns the mean of the other rollouts from this state on, with one more among them of the usual
        return."""
        agent = visit.transition.agent
        usual = self._others(self.turn(visit, place), place, agent)
        if not usual:
            usual = [total_return(each, agent) for at, each in enumerate(self._group) if at != place]
        same = self._others(visit.state, place, agent)
        return fmean([*same, fmean(usual)]) if usual else 0.0

    def known(self, state: State | None, place: int, agent: str) -> float | None:
        """Returns the mean of the other rollouts from a state on, by an agent's final reward; None if no
        other reached it."""
        same = self._others(state, place, agent)
        return fmean(same) if same else None

    def final(self, agent: str) -> Sequence[float]:
        """The final reward of each rollout, as it counts for an agent."""
        return self._final[agent]

    def turn(self, visit: Visit, place: int) -> Turn:
        """Whose call this is, and which."""
        return visit.transition.agent, self._turns[place][visit.transition.key]

    def _others(self, label: Label | None, place: int, agent: str) -> list[float]:
        found, final = {} if label is None else self._earned.get(label, {}), self._final[agent]
        return [earned + final[other] for other, earned in found.items() if other != place]


# credit ----------------------------------------------------------------------------------
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
        table = VisitTable(group)

        def parts(visit: Visit, place: int) -> tuple[Part, ...]:
            return advantage(visit, place, table, self.own)

        return [of_table(table, parts)]


state = Tabular(own=1.0)
"""One comparison: all advantages of the group; its baselines are its own, not the algorithm's."""


def of_table(table: VisitTable, parts: Callable[[Visit, int], Sequence[Part]]) -> Comparison:
    """The comparison in which each visit, of the rollout at a place of the table, is credited with the sum of
    its parts."""
    made = [
        {visit.transition.key: tuple(parts(visit, place)) for visit in found}
        for place, found in enumerate(table.visits)
    ]
    every = {key: some for peer in made for key, some in peer.items()}
    advantages = ({key: add_parts(some) for key, some in peer.items()} for peer in made)
    return Comparison(tuple(advantages), baseline=False, parts=every.__getitem__)


def advantage(visit: Visit, place: int, table: VisitTable, own: float) -> tuple[Part, ...]:
    """Returns the parts of a visit's advantage, for the rollout at this place of the table."""
    returned, following = table.returned(visit, place), visit.following
    looked_up: float | None = None
    if following is not None and own < 1:
        looked_up = table.known(following.state, place, visit.transition.agent)
    expected = Part(EXPECTED, table.expected(visit, place), -1.0)
    if following is None or looked_up is None:
        return Part(FROM_HERE, returned), expected
    return (
        Part(FROM_HERE, returned, own),
        Part(UNTIL, visit.earned - following.earned, 1 - own),
        Part(AFTER, looked_up, 1 - own),
        expected,
    )
