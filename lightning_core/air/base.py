"""The input and the output of a rule of automatic intermediate reward.

A rule is a pure function from `Records` to `Signal`s: this call did this. What a signal is worth stands in a
table (`AIR`), so that a user can change the worth without touching the rule. A signal names its call by
id. What can't be linked to one call by ids is no signal: no reward is better than a wrong one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from lightning_core.errors import ConfigError
from lightning_core.records.types import (
    LARGEST_REWARD,
    REWARD_RANGE,
    Call,
    Event,
    Rollout,
    ToolErrorType,
    is_reward,
)


@dataclass(frozen=True, slots=True)
class Signal:
    """Something that one call did."""

    call_id: str
    detail: str
    """The exact fault, in a few words; kept as the reward's reason."""
    tool_call_id: str | None = None
    """The request for a tool that it is about. Of several signals about one request the strongest counts."""
    reward: float | None = None
    """Its worth; None leaves that to the table."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a request for a tool."""

    result: str | None
    """The result the model got, if the tool ran well."""
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
    """The records of one rollout's last attempt."""

    rollout: Rollout
    calls: tuple[Call, ...]
    """In the order they started, those of agents that are not trained among them."""
    events: tuple[Event, ...]
    """Runs of tools and spans, with the call they belong to where ids tell it."""
    requests: tuple[ToolRequest, ...]
    """In the order of their calls; of completed calls alone."""


Finder = Callable[[Records], Iterable[Signal]]
"""A rule."""


# the table ------------------------------------------------------------------------------------------
DEFAULT_RULES: Final[Mapping[str, float]] = MappingProxyType(
    {
        "tool_raised": -0.1,
        "timed_out": -0.1,
        "unknown_tool": -0.4,
        "invalid_arguments": -0.4,
        "unfit_reply": -0.4,
        "sql_error": -0.4,
        "empty_result": -0.05,
        "repeated_call": -0.05,
        "cut_by_length": -0.1,
    }
)
"""The worth of one signal of each rule, unless the user changes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AIR:
    """Automatic intermediate reward: what a trainer makes rewards of, beside the app's own."""

    rules: Mapping[str, float] = field(default_factory=lambda: DEFAULT_RULES)
    """The rules that take part, by name, and what one signal of each is worth; 0.0 only counts it."""
    functions: Sequence[Finder] = ()
    """Rules of your own, without a plugin; each of their signals says itself what it is worth."""
    bound: float | None = 0.5
    """Largest sum of one rollout's rewards, all taken as positive; None: no bound."""

    def __post_init__(self) -> None:
        for name, worth in self.rules.items():
            if not is_reward(worth):
                raise ConfigError(
                    f"AIR rule {name!r} is worth {worth!r}: give {REWARD_RANGE}, 0 to only count"
                )
        if self.bound is not None and not 0 < self.bound <= LARGEST_REWARD:
            raise ConfigError(
                f"AIR bound={self.bound!r}: must be above 0 and at most 1e9, or None for no bound"
            )
