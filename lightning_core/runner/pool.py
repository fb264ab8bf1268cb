"""A pool of slots that run one attempt each: taken when there is an attempt, replaced when one is lost.

A slot is a worker process, on this machine or on a node of Ray; here it is only started, run and ended.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from typing import Any, Protocol

from lightning_core.errors import LightningError, WorkerError
from lightning_core.records.types import Task
from lightning_core.runner.outcome import AttemptOutcome
from lightning_core.tracing.scope import Scope

log = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 5.0
"""Between two tries to start a slot; each is twice as long as the one before."""
START_SECONDS = 60.0
"""How long it is tried: memory and processes may be short for a while."""


class Slot(Protocol):
    """A worker process, where one attempt after another runs."""

    @property
    def alive(self) -> bool:
        """Whether it can be given an attempt."""

    async def run(self, scope: Scope, task: Task, begun: Callable[[], None]) -> AttemptOutcome:
        """See `WorkerPool.run`; a slot that was cancelled, or that broke, is not alive any more."""

    async def end(self) -> bool:
        """End it with what runs in it; False if that is impossible. May be called again."""


class WorkerPool:
    """A number of slots, which are started when they are first needed. Left, it runs nothing any more."""

    def __init__(
        self,
        start: Callable[[], Awaitable[Slot]],
        size: int,
        connection: AbstractAsyncContextManager[Any] | None = None,
    ) -> None:
        """`start` raises WorkerError, or OSError, if no further slot can be started now; it works inside
        `connection`. A pool is entered once."""
        self.size = size
        self._start = start
        self._connection = connection or nullcontext()
        self._unstarted = size
        """Slots that may still be started."""
        self._slots: set[Slot] = set()
        self._starting: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> WorkerPool:
        self._idle: asyncio.LifoQueue[Slot | Exception] = asyncio.LifoQueue()
        """Slots without an attempt, the one that was last busy on top; or why there is none."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._connection)
            stack.push_async_callback(self._end)
            self._unstarted -= 1
            first = await self._start()  # so that a function which can't be loaded is refused now
            self._slots.add(first)
            self._idle.put_nowait(first)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    async def _end(self) -> None:
        for start in self._starting:
            start.cancel()
        await asyncio.gather(*self._starting, return_exceptions=True)
        await asyncio.gather(*(slot.end() for slot in self._slots))

    async def run(self, scope: Scope, task: Task, begun: Callable[[], None]) -> AttemptOutcome:
        """Run one attempt, in `scope`.

        `begun` is called once, when the function is about to run: until then the attempt may have waited for
        a slot. If the function fails, or its process dies, that is an outcome. Raises what keeps a slot from
        being started: every attempt would fail of that, and it says nothing of the app.
        Cancelling ends the attempt, and raises CancelledError when nothing of it runs any more; where it
        can't be ended, an outcome that says `left_behind` is returned instead. In each case `scope` then
        holds what was noticed.
        """
        slot = await self._take()
        try:
            return await slot.run(scope, task, begun)
        finally:
            self._give(slot)

    async def _take(self) -> Slot:
        """A slot that lives, once there is one."""
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

    def _give(self, slot: Slot) -> None:
        if slot.alive:
            self._idle.put_nowait(slot)
        else:
            self._bring(instead_of=slot)

    def _bring(self, instead_of: Slot | None = None) -> None:
        """Have another slot started."""
        task = asyncio.create_task(self._begin(instead_of))
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def _begin(self, instead_of: Slot | None) -> None:
        try:
            if instead_of is not None:
                await instead_of.end()
                self._slots.discard(instead_of)
            slot = await self._start_patiently()
        except OSError as error:  # no process, memory or file descriptors to be had
            self._idle.put_nowait(WorkerError(f"no worker process could be started: {error}"))
        except Exception as error:  # the attempt that waits for the slot must hear of it
            self._idle.put_nowait(error)
        else:
            self._slots.add(slot)
            self._idle.put_nowait(slot)

    async def _start_patiently(self) -> Slot:
        """Raises what the last try raised."""
        deadline = time.monotonic() + START_SECONDS
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                return await self._start()
            except (LightningError, OSError) as error:
                if time.monotonic() + pause > deadline:
                    raise
                log.warning("no further worker could be started, it is tried again: %s", error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
