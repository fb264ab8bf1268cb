"""`AIR`: which rules take part, and what their signals are worth."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from lightning_core.air.base import Finder
from lightning_core.errors import ConfigError
from lightning_core.types import LARGEST_REWARD, REWARD_RANGE, Event, is_reward

DEFAULT_RULES: Final[Mapping[str, float]] = MappingProxyType(
    {
        "tool_raised": -0.1,
        "timed_out": -0.1,
        "unknown_tool": -0.4,
        "invalid_arguments": -0.4,
        "sql_error": -0.4,
        "empty_result": -0.05,
        "repeated_call": -0.05,
        "cut_by_length": -0.1,
    }
)
"""What one signal of each rule is worth, unless the user says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AIR:
    """Automatic intermediate reward: what a trainer makes rewards of, beside the app's own."""

    rules: Mapping[str, float] = field(default_factory=lambda: DEFAULT_RULES)
    """The rules that take part, by name, and what one signal of each is worth; 0.0 only counts it."""
    functions: Sequence[Finder] = ()
    """Rules of your own, without a plugin; each of their signals says itself what it is worth."""
    on_event: Callable[[Event], float | None] | None = None
    """What one tool run or span is worth, None for nothing; asked of those that are linked to a call."""
    bound: float | None = 0.5
    """What the rewards of one rollout come to at most, all taken as positive; None: no bound."""

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
