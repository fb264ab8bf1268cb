"""Threads that own one PostgreSQL connection each and carry out what others ask of them.

Callers on any thread or event loop hand in an operation and await its result. A blocking connection
in a thread of its own costs a caller half of what an asynchronous one does, and converting big rows
holds up no event loop. Further threads start when all are busy, so an idle process has few connections.

When the server goes away, an operation is run again until it succeeds or its time is up. It may have
been committed although the answer was lost, so every operation is such that running it twice is
running it once.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, TypeVar

import psycopg
from psycopg import Connection

from lightning_core.errors import StoreError
from lightning_core.stores.postgres_url import Place, in_words, may_pass

T = TypeVar("T")
Operation = Callable[[Connection], T]

OPEN_SECONDS = 5.0
"""How long to wait at the start for a server that is just starting itself; a wrong URL is told then."""
PAUSES = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.0)
"""Seconds between tries; the last for all further ones."""


@dataclass(slots=True, eq=False)
class _Job:
    operation: Operation[Any]
    deadline: float
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    result: Any = None
    error: BaseException | None = None

    def settle(self) -> None:
        """Hand the outcome to the caller; runs on the caller's loop."""
        if self.future.done():  # the caller was cancelled meanwhile
            return
        if self.error is None:
            self.future.set_result(self.result)
        else:
            self.future.set_exception(self.error)


@dataclass(slots=True)
class Patience:
    """Trying again after a failure that may pass, with growing pauses, until a deadline."""

    deadline: float
    closing: threading.Event
    pauses: Any = field(default_factory=lambda: itertools.chain(PAUSES, itertools.repeat(PAUSES[-1])))

    def after(self, error: psycopg.Error) -> bool:
        """Whether to try again; returns after the pause before that."""
        if not may_pass(error) or self.closing.is_set():
            return False
        pause = next(self.pauses)
        if time.monotonic() + pause > self.deadline:
            return False
        self.closing.wait(pause)
        return True


class PostgresLines:
    """Runs operations on up to `most` connections to `place`."""

    def __init__(
        self, place: Place, connect: Callable[[], Connection], *, most: int, retry_seconds: float
    ) -> None:
        self._place = place
        self._connect = connect
        self._most = most
        self._retry_seconds = retry_seconds
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._gate = threading.Lock()
        self._closing = threading.Event()
        self._open = False
        self._waiting = 0
        """Jobs handed in and not yet done."""
        self._threads: list[threading.Thread] = []

    async def open(self) -> None:
        """Connect the first line. Raises StoreError if the store can't be used."""
        connection = await asyncio.to_thread(self._first)
        self._open = True
        self._start(connection)

    async def close(self) -> None:
        """Finish what was handed in, without waiting for a server that is gone, then hang up."""
        with self._gate:
            if not self._open:
                return
            self._open = False
            self._closing.set()
            for _ in self._threads:
                self._jobs.put(None)
        for thread in self._threads:
            await asyncio.to_thread(thread.join)

    async def run(self, operation: Operation[T]) -> T:
        """The operation's result, once it is committed. It is carried out even if the caller is cancelled."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        job = _Job(operation, time.monotonic() + self._retry_seconds, loop, future)
        with self._gate:
            if not self._open:
                raise StoreError(
                    f"the store {self._place.name!r} is not open: use it inside `async with store`"
                )
            self._waiting += 1
            if len(self._threads) < min(self._waiting, self._most):
                self._start(None)
            self._jobs.put(job)
        return await future

    def _first(self) -> Connection:
        patience = Patience(time.monotonic() + min(OPEN_SECONDS, self._retry_seconds), self._closing)
        while True:
            try:
                return self._connect()
            except psycopg.Error as error:
                if not patience.after(error):
                    raise in_words(error, self._place) from error

    def _start(self, connection: Connection | None) -> None:
        thread = threading.Thread(target=self._work, args=(connection,), name="store postgresql", daemon=True)
        self._threads.append(thread)
        thread.start()

    # in a thread --------------------------------------------------------------------------
    def _work(self, connection: Connection | None) -> None:
        while (job := self._jobs.get()) is not None:
            connection = self._carry_out(job, connection)
            with self._gate:
                self._waiting -= 1
            with suppress(RuntimeError):  # its loop is closed: nobody waits there any more
                job.loop.call_soon_threadsafe(job.settle)
        if connection is not None:
            connection.close()

    def _carry_out(self, job: _Job, connection: Connection | None) -> Connection | None:
        """Run the job until it succeeds or its time is up; returns the connection for the next one."""
        patience = Patience(job.deadline, self._closing)
        while True:
            try:
                if connection is None or connection.closed:
                    connection = self._connect()
                job.result, job.error = job.operation(connection), None
                return connection
            except psycopg.Error as error:
                if not patience.after(error):
                    job.error = self._explain(error)
                    return connection
            except Exception as error:
                job.error = error
                return connection

    def _explain(self, error: psycopg.Error) -> StoreError:
        words = in_words(error, self._place)
        words.__cause__ = error
        return words
