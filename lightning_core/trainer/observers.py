"""Observers: what a run tells while it goes on, and to whom.

The display, the trackers and the alert rules are observers. Each overrides the methods that it needs. None of
them changes the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from lightning_core.trainer.summary import Evaluation
from lightning_core.types import Alert, Metrics, Rollout, Run


class Observer:
    """Sees a run; every method does nothing unless it is overridden."""

    def start(self, run: Run, history: Sequence[Metrics]) -> None:
        """The run begins, or goes on after the steps in `history`."""

    def note(self, text: str) -> None:
        """A line that a person should read."""

    def collecting(self, what: str, rollouts: Sequence[Rollout]) -> None:
        """The rollouts are waited for; some may have ended already."""

    def rollout_ended(self, rollout: Rollout) -> None:
        """One more rollout has ended."""

    def updating(self, step: int) -> None:
        """The weights are being changed by this step."""

    async def step_ended(self, metrics: Metrics) -> None:
        """An update is made, its metrics and its checkpoint are stored."""

    def evaluated(self, result: Evaluation) -> None:
        """An evaluation is finished, now or by a process that was killed."""

    def alert(self, alert: Alert) -> None:
        """Something about the run looks wrong; the alert is stored."""

    async def finish(self, status: str) -> None:
        """The run has "finished", "stopped" or "failed"."""


class Observers(Observer):
    """Tells each observer of a list, in turn; the end is told to the last one first."""

    def __init__(self, *observers: Observer) -> None:
        self._all = list(observers)

    def add(self, observer: Observer) -> None:
        """Tell this one too."""
        self._all.append(observer)

    @asynccontextmanager
    async def observe(self, run: Run, history: Sequence[Metrics]) -> AsyncIterator[None]:
        """Tell of the start, and at the end of the block how the run has ended."""
        status = "failed"
        self.start(run, history)
        try:
            yield
            status = "finished"
        except asyncio.CancelledError:
            status = "stopped"
            raise
        finally:
            await self.finish(status)

    def start(self, run: Run, history: Sequence[Metrics]) -> None:
        for each in self._all:
            each.start(run, history)

    def note(self, text: str) -> None:
        for each in self._all:
            each.note(text)

    def collecting(self, what: str, rollouts: Sequence[Rollout]) -> None:
        for each in self._all:
            each.collecting(what, rollouts)

    def rollout_ended(self, rollout: Rollout) -> None:
        for each in self._all:
            each.rollout_ended(rollout)

    def updating(self, step: int) -> None:
        for each in self._all:
            each.updating(step)

    async def step_ended(self, metrics: Metrics) -> None:
        for each in self._all:
            await each.step_ended(metrics)

    def evaluated(self, result: Evaluation) -> None:
        for each in self._all:
            each.evaluated(result)

    def alert(self, alert: Alert) -> None:
        for each in self._all:
            each.alert(alert)

    async def finish(self, status: str) -> None:
        for each in reversed(self._all):
            await each.finish(status)
