"""Alerts: what a rule sees of a run, what it finds, and when a person is told.

A rule is a pure function from a `Scene` to `Finding`s: what is wrong now. It keeps no memory; `Watch` reports
each condition once. A condition is a rule and a subject. It is reported when it is first found, and again
only after it was absent for `QUIET` steps, so a number that swings about its threshold gives one alert. An
alert's id follows from rule, subject and step: a resumed run that finds it again adds nothing to the store.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from itertools import accumulate, pairwise
from statistics import fmean
from typing import Any, Literal

from lightning_core.errors import ConfigError
from lightning_core.records.types import Alert, Member, Metrics
from lightning_core.stores.rules import LONGEST_ID

log = logging.getLogger(__name__)

QUIET = 5
"""Steps without it after which a condition is over."""
RECALLED = 50
"""Steps that are gone through again on resume, for the conditions that still hold."""


@dataclass(frozen=True, slots=True)
class Space:
    """The disk of the run's folder, in bytes, after a step."""

    step: int
    free: int
    checkpoints: int
    """All that are kept."""
    largest: int
    """The largest checkpoint: as much is written before an older one is deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A run as it stands."""

    history: Sequence[Metrics] = ()
    """The numbers of its steps, by rising step."""
    total_steps: int | None = None
    """Updates it is to make."""
    now: float = 0.0
    """Unix seconds."""
    since: float = 0.0
    """When this process began to watch, in Unix seconds."""
    members: Sequence[Member] = ()
    """Who plays in it."""
    running: Mapping[str, float] = field(default_factory=dict)
    """Rollouts under way, by id and attempt, and for how many seconds at least."""
    ended: Sequence[float] = ()
    """Seconds that rollouts took which ended lately, at most."""
    space: Sequence[Space] = ()
    """Measurements of the disk, by rising step."""
    unseen: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    """Calls that could not be recorded: by host, library and agent what happened, and how often."""

    @property
    def step(self) -> int | None:
        """The newest step that has numbers."""
        return self.history[-1].step if self.history else None


@dataclass(frozen=True, slots=True)
class Finding:
    """A condition that holds now."""

    message: str
    """The alert's message: the event, its subject, and the remedy."""
    subject: str = ""
    """Whom it is about, where a rule can find the same of several: a worker, a rollout."""
    level: Literal["warning", "critical"] = "warning"
    since: str | None = None
    """Distinguishes this alert from an earlier one of its kind; None: by the step at which it is first
    found."""


Rule = Callable[[Scene], Iterable[Finding]]
"""A rule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alerts:
    """Changes to the rules that watch a run, and a function of your own to be told."""

    rules: Mapping[str, Mapping[str, float] | bool | Rule] = field(default_factory=dict)
    """Rules by name: thresholds to change, such as {"reward_collapse": {"drop": 0.6}}; False to switch it
    off; or a function, which is a rule of your own."""
    on_alert: Callable[[Alert], Any] | None = None
    """Called with each new alert, in a thread of its own if it is not async; it may take its time."""


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


class Watch:
    """The rules of one run, and which conditions hold."""

    def __init__(self, run_id: str, rules: Mapping[str, Rule]) -> None:
        self.run_id = run_id
        self._rules = dict(rules)
        self._held: dict[tuple[str, str, str | None], int] = {}
        """Conditions that were told, and the last step at which they were found."""

    def recall(self, history: Sequence[Metrics]) -> None:
        """Take the conditions of the steps so far as told."""
        for end in range(max(1, len(history) - RECALLED), len(history) + 1):
            self.look(Scene(history=history[:end]))

    def look(self, scene: Scene) -> list[Alert]:
        """The alerts of conditions that are new."""
        step = -1 if scene.step is None else scene.step
        self._held = {key: last for key, last in self._held.items() if step - last <= QUIET or key[2]}
        fresh = []
        for rule, finding in self._findings(scene):
            key = rule, finding.subject, finding.since
            if key not in self._held:
                fresh.append(self._alert(rule, finding, scene.step))
            self._held[key] = step
        return fresh

    def _findings(self, scene: Scene) -> Iterator[tuple[str, Finding]]:
        for name, rule in list(self._rules.items()):
            try:
                found = [(name, finding) for finding in rule(scene)]
                for _, finding in found:
                    self._alert(name, finding, scene.step)  # raises for what is no alert
                yield from found
            except Exception as error:  # a plugin's or a user's own: it must not stop the run
                log.warning("alert rule %r failed and is left out from here on: %r", name, error)
                del self._rules[name]

    def _alert(self, rule: str, finding: Finding, step: int | None) -> Alert:
        mark = f"step-{step}" if finding.since is None else finding.since
        return Alert(
            run_id=self.run_id,
            id=_short("/".join(filter(None, (rule, finding.subject, mark)))),
            rule=rule,
            level=finding.level,
            message=finding.message,
            step=step,
        )


def _short(name: str) -> str:
    """An id that a store takes; of one that none would take the beginning, and a digest of all."""
    kept = "".join(filter(str.isprintable, name))
    if kept == name and len(name) <= LONGEST_ID:
        return name
    digest = blake2b(name.encode(errors="replace"), digest_size=8).hexdigest()
    return f"{kept[: LONGEST_ID // 2]}.{digest}"


# what rules make of a history -----------------------------------------------------------------------------
def numbers(history: Sequence[Metrics], name: str) -> list[float]:
    """A number of all steps that have it, by rising step; those that are not finite are left out."""
    found = (entry.values[name] for entry in history if name in entry.values)
    return [value for value in found if math.isfinite(value)]


def moving_means(values: Sequence[float], width: int) -> list[float]:
    """The mean of every `width` values in a row."""
    sums = list(accumulate(values, initial=0.0))
    return [(sums[end] - sums[end - width]) / width for end in range(width, len(sums))]


def jitter(values: Sequence[float]) -> float:
    """The deviation of values about their trend: sqrt(mean of squared differences of neighbours / 2).

    Of independent values it is their standard deviation; a slow rise or fall hardly adds to it (von Neumann,
    "Distribution of the ratio of the mean square successive difference to the variance", 1941). The largest
    tenth of the differences, one at least, is left out: a sudden fall is no noise.
    """
    squares = sorted((later - former) ** 2 for former, later in pairwise(values))
    kept = squares[: -max(1, len(squares) // 10)]
    return math.sqrt(fmean(kept) / 2) if kept else 0.0


def total(history: Sequence[Metrics], name: str) -> float:
    """The sum of a number over the steps that have it."""
    return math.fsum(numbers(history, name))
