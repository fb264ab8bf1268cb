"""Joining a run that another process trains: which one, for how long, and when to end.

A process that plays one role may begin before the trainer does, and outlives it: while the run is stopped it
waits. It ends when the run is finished, or at a signal.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import threading
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from lightning_core.errors import ConfigError
from lightning_core.records.types import Run
from lightning_core.stores.base import Store
from lightning_core.stores.heartbeat import BEAT_SECONDS, find_living

log = logging.getLogger(__name__)

_NAMED = 5


@dataclass(frozen=True, slots=True)
class Joining:
    """Which run a process joins, and as whom."""

    store: str
    """URL of the store that holds it."""
    run: str | None = None
    """Its id. None: the newest one that fits and is being trained."""
    name: str | None = None
    """The process's name: one that starts again under it takes the place of the one that died. No two at work
    in one role may have the same. None: a name of this process alone."""
    look_seconds: float = BEAT_SECONDS
    """Between two looks at the run."""
    say: Callable[[str], None] = log.info
    """Tells a person what is going on."""


class RolePart(Protocol):
    """A role in a run."""

    name: str
    """Who plays it, such as "worker one"."""
    wanted: str
    """The run to wait for, such as "a run of 'solve'"."""

    def misfit(self, run: Run) -> str | None:
        """Why it can't be played in this run, and what to do; None if it can."""

    def outdated(self, run: Run, now: Run) -> bool:
        """Whether it must be started again, as it began with the record `run` and the record is `now`."""

    async def play(self, run: Run) -> None:
        """Play until cancelled; ends, with an error, if it can't go on."""


def own_name(joining: Joining) -> str:
    """The name that was given, or one that no other process has."""
    return joining.name or f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"


class Joined:
    """A process with one part, from its first look for a run to its end."""

    def __init__(self, joining: Joining, store: Store, part: RolePart, over: asyncio.Event) -> None:
        """`over` is set when the process is to end."""
        self.joining = joining
        self.store = store
        self.part = part
        self.over = over

    async def stay(self) -> None:
        """Find the run and play in it to its end, or until the process is to end.

        Raises ConfigError for a run that was named and does not fit, and what ends the part (StoreError).
        """
        say, name = self.joining.say, self.part.name
        run = await self._find()
        while run is not None and run.status != "finished" and not self.over.is_set():
            self._check(run)
            if run.status == "running":
                say(f"{name} works for run {run.id}")
                await self._play(run)
            run = await self._news(run)
        say(f"{name} ends: run {run.id} is {run.status}" if run else f"{name} ends")

    async def _find(self) -> Run | None:
        """The run to join, as soon as there is one; None if the process is to end first."""
        told = ""
        while not self.over.is_set():
            runs = await self.store.list_runs()
            run = self._named(runs) if self.joining.run is not None else await self._newest(runs)
            if run is not None:
                return run
            if (waiting := self._waiting_for(runs)) != told:
                self.joining.say(waiting)
                told = waiting
            await self._pause()
        return None

    def _named(self, runs: Sequence[Run]) -> Run | None:
        run = next((run for run in runs if run.id == self.joining.run), None)
        if run is not None:
            self._check(run)
        return run

    def _check(self, run: Run) -> None:
        """A run that was joined may be resumed as another."""
        if (reason := self.part.misfit(run)) is not None:
            raise ConfigError(f"{self.part.name} can't join run {run.id!r}: {reason}")

    async def _newest(self, runs: Sequence[Run]) -> Run | None:
        """Newest first; one whose trainer has died is not joined, for a newer one may be begun instead."""
        for run in runs:
            fits = run.status == "running" and self.part.misfit(run) is None
            if fits and await find_living(self.store, run.id, "trainer"):
                return run
        return None

    def _waiting_for(self, runs: Sequence[Run]) -> str:
        if self.joining.run is not None:
            return f"waiting for run {self.joining.run!r}; the store has {_names(runs) or 'none yet'}"
        others = [run for run in runs if run.status == "running" and self.part.misfit(run) is not None]
        beside = f"; running are {_names(others)}, which do not fit" if others else ""
        return f"waiting for {self.part.wanted} that is being trained{beside}"

    async def _play(self, run: Run) -> None:
        playing = asyncio.create_task(self.part.play(run))
        watching = asyncio.create_task(self._while_running(run))
        try:
            await asyncio.wait({playing, watching}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (playing, watching):
                task.cancel()
            await asyncio.wait({playing, watching})
            if not playing.cancelled():
                playing.result()

    async def _while_running(self, run: Run) -> None:
        now = run
        while not self.over.is_set() and now.status == "running" and not self.part.outdated(run, now):
            now = await self._news(run)

    async def _news(self, run: Run) -> Run:
        """The run, a moment later."""
        await self._pause()
        return await self.store.find_run(run.id) or run

    async def _pause(self) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self.over.wait(), self.joining.look_seconds)


def _names(runs: Sequence[Run]) -> str:
    more = f" and {len(runs) - _NAMED} more" if len(runs) > _NAMED else ""
    return ", ".join(repr(run.id) for run in runs[:_NAMED]) + more


def until_signal() -> asyncio.Event:
    """Is set by the first SIGINT or SIGTERM; the second ends the process as it always does."""
    over = asyncio.Event()
    if threading.current_thread() is not threading.main_thread():
        return over
    loop = asyncio.get_running_loop()

    def end(number: signal.Signals) -> None:
        over.set()
        loop.remove_signal_handler(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end, number)
    return over
