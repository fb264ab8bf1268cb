"""What a rule of alerts sees of a run, and what it says.

A rule is a pure function from a `Scene` to `Finding`s: what is wrong now. It need not remember what it said
before: `watch.py` tells one condition once. Metrics come with every step; who is there, what is under way and
how full the disk is, also between steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from lightning_core.types import Member, Metrics


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
    """By rising step."""

    @property
    def step(self) -> int | None:
        """The newest step that has numbers."""
        return self.history[-1].step if self.history else None


@dataclass(frozen=True, slots=True)
class Finding:
    """A condition that holds now."""

    message: str
    """What happened, to what, and what to do."""
    subject: str = ""
    """Whom it is about, where a rule can find the same of several: a worker, a rollout."""
    level: Literal["warning", "critical"] = "warning"
    since: str | None = None
    """What tells it from another time of the same; None: the step at which it is first found."""


Rule = Callable[[Scene], Iterable[Finding]]
"""A rule."""
