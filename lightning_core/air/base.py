"""What a rule of automatic intermediate reward sees of a rollout, and what it says.

A rule is a pure function from `Records` to `Signal`s: this call did this. What a signal is worth stands in a
table (`rules.py`), so that a user can change the worth without touching the rule. A signal names its call by
id. What can't be linked to one call by ids is no signal: no reward is better than a wrong one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from lightning_core.types import Call, Event, Rollout, ToolErrorType


@dataclass(frozen=True, slots=True)
class Signal:
    """Something that one call did."""

    call_id: str
    detail: str
    """What exactly, in a few words; kept as the reward's reason."""
    tool_call_id: str | None = None
    """The request for a tool that it is about. Of several signals about one request the strongest counts."""
    reward: float | None = None
    """What it is worth; None leaves that to the table."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a request for a tool."""

    result: str | None
    """What the model was told, if the tool ran well."""
    error: str | None = None
    """Why it failed; None if it did not."""
    error_type: ToolErrorType | None = None


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """A tool that a reply asked for."""

    call: Call
    tool_call_id: str | None
    """The id that the reply gave it; of a request in words, that of the run."""
    name: str
    arguments: str
    """As the model wrote them, which need not be JSON."""
    outcome: Outcome | None
    """None if nothing told of it bears its id."""


@dataclass(frozen=True, slots=True)
class Records:
    """What was recorded of one rollout's last attempt."""

    rollout: Rollout
    calls: tuple[Call, ...]
    """In the order they started, those of agents that are not trained among them."""
    events: tuple[Event, ...]
    """Runs of tools and spans, with the call they belong to where ids tell it."""
    requests: tuple[ToolRequest, ...]
    """In the order of their calls; of completed calls alone."""


Finder = Callable[[Records], Iterable[Signal]]
"""A rule."""
