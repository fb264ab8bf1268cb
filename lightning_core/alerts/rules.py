"""`Alerts`: which rules watch a run, with what thresholds, and who is told."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from lightning_core.alerts.base import Rule
from lightning_core.errors import ConfigError
from lightning_core.types import Alert


@dataclass(frozen=True, slots=True, kw_only=True)
class Alerts:
    """Changes to the rules that watch a run, and a function of your own to be told."""

    rules: Mapping[str, Mapping[str, float] | bool] = field(default_factory=dict)
    """By name: thresholds to change, such as {"reward_collapse": {"drop": 0.6}}, or False to switch it
    off."""
    functions: Sequence[Rule] = ()
    """Rules of your own, without a plugin."""
    on_alert: Callable[[Alert], Any] | None = None
    """Called with each new alert, in a thread of its own if it is not async; it may take its time."""
    every: float = 30.0
    """Seconds between two looks at workers, rollouts and the disk, while a step goes on."""

    def __post_init__(self) -> None:
        if self.every <= 0:
            raise ConfigError(f"Alerts(every={self.every!r}): must be above 0 seconds")


def make_rule(name: str, part: Any, change: Mapping[str, float] | bool) -> Rule:
    """The rule registered under a name, with changed thresholds. ConfigError for one that it does not
    have."""
    thresholds = {} if isinstance(change, bool) else dict(change)
    known = [each for each in inspect.signature(part).parameters if each != "scene"]
    for given in thresholds.keys() - set(known):
        has = f"it has {', '.join(map(repr, known))}" if known else "it has none"
        raise ConfigError(f"alert rule {name!r} has no threshold {given!r}; {has}")
    if isinstance(part, type):
        rule: Rule = part(**thresholds)
        return rule
    return partial(part, **thresholds) if thresholds else part
