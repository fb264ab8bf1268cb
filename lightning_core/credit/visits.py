"""Visits: the calls of a rollout as states, each with the next state that it led to.

A state is what an agent was shown: its name and the digest of its observation. The next state of a call is
the next call of the rollout during which no other call ran: calls that overlap can't have led to one
another, and what they did together shows only once they are all done. Only calls of trained agents are
visits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
