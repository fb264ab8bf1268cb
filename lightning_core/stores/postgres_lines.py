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
import logging
import struct
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import psycopg
from psycopg import Connection

from lightning_core.errors import StoreError
from lightning_core.stores.jobs import Job, answer
from lightning_core.stores.postgres_url import Place, in_words, may_pass
from lightning_core.stores.rows import Row

log = logging.getLogger(__name__)
T = TypeVar("T")
Operation = Callable[[Connection], T]

OPEN_SECONDS = 5.0
"""How long to wait at the start for a server that is just starting itself; a wrong URL is told then."""
LAST_SECONDS = 0.1
"""For how long a job tries when the server has been away for too long already."""
MOST = 64
"""How many writes share a transaction."""
PAUSES = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.0)
"""Seconds between tries; the last for all further ones."""


@dataclass(frozen=True, slots=True)
class Write:
    """An operation that is one statement, run for some rows; its result is how many rows that changed.

    Those that have gathered are carried out in one transaction, so under load they share its price.
    """

    statement: str
    rows: Callable[[], Sequence[Row]]
    """Made in the thread that carries it out, as there may be thousands."""

    def __call__(self, connection: Connection) -> int:
        return _all(connection, [self])[0]


@dataclass(slots=True, eq=False)
class _Job(Job):
    operation: Operation[Any]
    deadline: float


@dataclass(slots=True)
class Patience:
    """Trying again after a failure that may pass, with growing pauses, until a deadline."""

    deadline: float
    closing: threading.Event
    pauses: Any = field(default_factory=lambda: itertools.chain(PAUSES, itertools.repeat(PAUSES[-1])))

    def after(self, error: psycopg.Error, *, first: bool = False) -> bool:
        """Whether to try again, `first` to connect at all; returns after the pause before that."""
        if not may_pass(error, first=first) or self.closing.is_set():
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
        self._lost_at: float | None = None
        """When the server went away that is still away."""
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
        job = _Job(operation, time.monotonic() + self._retry_seconds)
        with self._gate:
            if not self._open:
                raise StoreError(
                    f"the store {self._place.name!r} is not open: use it inside `async with store`"
                )
            self._waiting += 1
            if len(self._threads) < min(self._waiting, self._most):
                self._start(None)
            self._jobs.put(job)
        result: T = await job.future
        return result

    def _first(self) -> Connection:
        patience = Patience(time.monotonic() + min(OPEN_SECONDS, self._retry_seconds), self._closing)
        while True:
            try:
                return self._connect()
            except psycopg.Error as error:
                if not patience.after(error, first=True):
                    raise in_words(error, self._place) from error

    def _start(self, connection: Connection | None) -> None:
        thread = threading.Thread(target=self._work, args=(connection,), name="store postgresql", daemon=True)
        self._threads.append(thread)
        thread.start()

    # in a thread --------------------------------------------------------------------------
    def _work(self, connection: Connection | None) -> None:
        job = self._jobs.get()
        while job is not None:
            jobs, after = self._gather(job)
            connection = self._carry_out(jobs, connection)
            with self._gate:
                self._waiting -= len(jobs)
            answer(jobs)
            job = after or self._jobs.get()
        if connection is not None:
            connection.close()

    def _gather(self, job: _Job) -> tuple[list[_Job], _Job | None]:
        """The job with this line's share of the writes that wait behind it, and one taken too many."""
        jobs = [job]
        share = 1 + self._jobs.qsize() // len(self._threads)
        while isinstance(jobs[-1].operation, Write) and len(jobs) < min(share, MOST):
            try:
                found = self._jobs.get_nowait()
            except Empty:
                break
            if found is None:
                self._jobs.put(None)  # to close, once this is done
                break
            if not isinstance(found.operation, Write):
                return jobs, found
            jobs.append(found)
        return jobs, None

    def _carry_out(self, jobs: Sequence[_Job], connection: Connection | None) -> Connection | None:
        """Settle on an outcome for each job; returns the connection for the next ones."""
        writes = [job.operation for job in jobs if isinstance(job.operation, Write)]
        if len(jobs) > 1 and connection is not None:
            try:
                counts = _all(connection, writes)
            except Exception:  # one of them, or the connection: each tells by itself
                log.debug("%d writes in one transaction failed", len(jobs), exc_info=True)
            else:
                for job, count in zip(jobs, counts, strict=True):
                    job.result = count
                return connection
        for job in jobs:
            connection = self._try(job, connection)
        return connection

    def _try(self, job: _Job, connection: Connection | None) -> Connection | None:
        """Run the job until it succeeds or its time is up; returns the connection for the next one."""
        patience = Patience(self._deadline(job), self._closing)
        while True:
            try:
                if connection is None or connection.closed:
                    connection = self._connect()
                job.result = job.operation(connection)
                self._lost_at = None
                return connection
            except psycopg.Error as error:
                if (
                    connection is not None and error.sqlstate is None
                ):  # not told by the server: it may be broken
                    connection.close()
                if may_pass(error):
                    self._lost_at = self._lost_at or time.monotonic()
                if not patience.after(error):
                    job.error = self._explain(error)
                    return connection
            except (OverflowError, struct.error) as error:
                job.error = StoreError(f"a PostgreSQL store keeps integers of 64 bits: {error}")
                return connection
            except Exception as error:
                job.error = error
                return connection

    def _deadline(self, job: _Job) -> float:
        """A server is waited for once, not anew by each job: whoever ends because it stays away has more to
        ask of it, and is to end soon."""
        if self._lost_at is None:
            return job.deadline
        return min(job.deadline, max(self._lost_at + self._retry_seconds, time.monotonic() + LAST_SECONDS))

    def _explain(self, error: psycopg.Error) -> StoreError:
        words = in_words(error, self._place)
        words.__cause__ = error
        return words


def _all(connection: Connection, writes: Sequence[Write]) -> list[int]:
    """How many rows each of the writes changed; all in one transaction."""
    cursors = []
    with connection.pipeline() if len(writes) > 1 else nullcontext():
        for write in writes:
            rows, cursor = write.rows(), connection.cursor()
            if len(rows) == 1:
                cursor.execute(write.statement, rows[0])
            else:
                cursor.executemany(write.statement, rows)
            cursors.append(cursor)
    return [cursor.rowcount for cursor in cursors]
