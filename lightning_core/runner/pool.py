"""A pool of places that run one attempt each: taken when there is an attempt, replaced when one is lost.

What a place is, a process or an actor, is not known here, only that it can be started, run and ended.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

from lightning_core.errors import ExecutorError, LightningError
from lightning_core.runner.executor import Outcome
from lightning_core.tracing.scope import Scope
from lightning_core.types import Task

log = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 5.0
"""Between two tries to start a place; each is twice as long as the one before."""
PATIENCE_SECONDS = 60.0
"""How long it is tried: memory and processes may be short for a while."""


class Place(Protocol):
    """Where one attempt after another runs."""

    @property
    def alive(self) -> bool:
        """Whether it can be given an attempt."""

    async def run(self, scope: Scope, task: Task, begun: Callable[[], None]) -> Outcome:
        """See `Crew.run`; a place that was cancelled, or that broke, is not alive any more."""

    async def end(self) -> bool:
        """End it with what runs in it; False if that is impossible. May be called again."""


class Pool:
    """A crew with a number of places, which are started when they are first needed."""

    def __init__(self, start: Callable[[], Awaitable[Place]], slots: int) -> None:
        """`start` raises ExecutorError, or OSError, if there can be no further place now."""
        self.slots: int | None = slots
        self._start = start
        self._unstarted = slots
        """Places that may still be started."""
        self._places: set[Place] = set()
        self._starting: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Pool:
        self._idle: asyncio.LifoQueue[Place | Exception] = asyncio.LifoQueue()
        """Places without an attempt, the one that was last busy on top; or why there is none."""
        self._unstarted -= 1
        first = await self._start()  # so that a function which can't be loaded is refused now
        self._places.add(first)
        self._idle.put_nowait(first)
        return self

    async def __aexit__(self, *exc: object) -> None:
        for start in self._starting:
            start.cancel()
        await asyncio.gather(*self._starting, return_exceptions=True)
        await asyncio.gather(*(place.end() for place in self._places))

    async def run(self, scope: Scope, task: Task, begun: Callable[[], None]) -> Outcome:
        """See `Crew.run`. Raises what stood in the way if there is no place for it: every attempt would
        fail of that, and it says nothing of the app."""
        place = await self._take()
        try:
            return await place.run(scope, task, begun)
        finally:
            self._give(place)

    async def _take(self) -> Place:
        """A place that lives, once there is one."""
        while True:
            if self._idle.empty() and self._unstarted:
                self._unstarted -= 1
                self._bring()
            found = await self._idle.get()
            if isinstance(found, Exception):
                self._unstarted += 1
                raise found
            if found.alive:
                return found
            self._bring(instead_of=found)

    def _give(self, place: Place) -> None:
        if place.alive:
            self._idle.put_nowait(place)
        else:
            self._bring(instead_of=place)

    def _bring(self, instead_of: Place | None = None) -> None:
        """Have another place started."""
        task = asyncio.create_task(self._begin(instead_of))
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def _begin(self, instead_of: Place | None) -> None:
        try:
            if instead_of is not None:
                await instead_of.end()
                self._places.discard(instead_of)
            place = await self._start_patiently()
        except OSError as error:  # no process, memory or file descriptors to be had
            self._idle.put_nowait(ExecutorError(f"no worker process could be started: {error}"))
        except Exception as error:  # whoever waits for the place must hear of it
            self._idle.put_nowait(error)
        else:
            self._places.add(place)
            self._idle.put_nowait(place)

    async def _start_patiently(self) -> Place:
        """Raises what the last try raised."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                return await self._start()
            except (LightningError, OSError) as error:
                if time.monotonic() + pause > deadline:
                    raise
                log.warning("no place for another rollout could be started, the next try may do: %s", error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
