"""Stuck rollouts: one goes on far longer than the others take, and the step waits for it.

    found if  t > factor * max(median of those that ended, least / factor)    and at least `known` have ended

t is how long a rollout has been seen under way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from lightning_core.alerts.base import Finding, Scene


@dataclass(frozen=True, slots=True, kw_only=True)
class StuckRollout:
    """A rollout does not end."""

    factor: float = 10.0
    """Times what others take: agents differ by two or three times, not by ten."""
    least: float = 120.0
    """Seconds below which nothing is stuck."""
    known: int = 8
    """Rollouts that must have ended for a comparison."""

    def __call__(self, scene: Scene) -> Iterator[Finding]:
        if len(scene.ended) < self.known:
            return
        usual = median(scene.ended)
        for rollout, seconds in scene.running.items():
            if seconds > max(self.factor * usual, self.least):
                yield Finding(
                    f"rollout {rollout} has been under way for {seconds:.0f} s, and others take {usual:.0f} "
                    "s at most; its app may wait for something that never comes: give its clients and tools "
                    "a time-out, or Trainer a smaller timeout, and see agentlightning show RUN --rollout",
                    subject=rollout,
                    since="",
                )
