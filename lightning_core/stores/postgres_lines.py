"""Threads that own one PostgreSQL connection each and carry out what others ask of them.

Callers on any thread or event loop hand in an operation and await its result. A blocking connection
in a thread of its own costs a caller half of what an asynchronous one does, and converting big rows
holds up no event loop. Further threads start when all are busy, so an idle process has few connections.
A thread that comes free takes all that waits and may share a transaction (`postgres_statements`).

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
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import psycopg
from psycopg import Connection

from lightning_core.errors import StoreError
from lightning_core.stores.jobs import Job, answer
from lightning_core.stores.postgres_statements import Operation, Shared, together
from lightning_core.stores.postgres_url import Place, in_words, may_pass

log = logging.getLogger(__name__)
T = TypeVar("T")

OPEN_SECONDS = 10.0
"""How long to wait at the start for a server that is just starting itself; a wrong URL is told then."""
LAST_SECONDS = 0.1
"""For how long a job tries when the server has been away for too long already."""
MOST = 64
"""How many operations share a transaction."""
PAUSES = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.0)
"""Seconds between tries; the last for all further ones."""


@dataclass(slots=True, eq=False)
class _Job(Job):
    operation: Operation[Any]
    shared: Shared[Any] | None
    """The same, as long as it may go with others."""
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
        shared = operation if isinstance(operation, Shared) else None
        job = _Job(operation, shared, time.monotonic() + self._retry_seconds)
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
            jobs, after = [job], None
            if connection is not None:
                jobs, after = self._gather(job)
                if len(jobs) > 1:
                    jobs = self._together(jobs, connection)
            for one in jobs:
                connection = self._try(one, connection)
                self._settle([one])
            job = after or self._jobs.get()
        if connection is not None:
            connection.close()

    def _gather(self, job: _Job) -> tuple[list[_Job], _Job | None]:
        """The job with those that wait behind it and may go with it, and one that may not."""
        jobs = [job]
        while jobs[-1].shared is not None and len(jobs) < MOST:
            try:
                found = self._jobs.get_nowait()
            except Empty:
                break
            if found is None:
                self._jobs.put(None)  # to close, once this is done
                break
            if found.shared is None:
                return jobs, found
            jobs.append(found)
        return jobs, None

    def _together(self, jobs: Sequence[_Job], connection: Connection) -> list[_Job]:
        """Carry out all in one transaction; returns those that are left to this line."""
        shared = [job.shared for job in jobs if job.shared is not None]
        try:
            answers = together(connection, shared)
        except Exception:  # one of them, or the connection: each tells by itself
            log.debug("%d operations in one transaction failed", len(jobs), exc_info=True)
            return self._hand_back(jobs)
        self._lost_at = None
        for job, one, answered in zip(jobs, shared, answers, strict=True):
            try:
                job.result = one.read(answered)
            except Exception as error:
                job.error = error
        left = [job for job in jobs if job.result is None and job.error is None]
        self._settle([job for job in jobs if job not in left])
        return self._hand_back(left)

    def _hand_back(self, jobs: Sequence[_Job]) -> list[_Job]:
        """Let any line carry out each by itself, as it may have to wait; those that are left to this line are
        all if the others are to close, else one."""
        for job in jobs:
            job.shared = None
        with self._gate:
            kept = len(jobs) if not self._open else 1
            for job in jobs[kept:]:
                self._jobs.put(job)
        return list(jobs[:kept])

    def _settle(self, jobs: Sequence[_Job]) -> None:
        with self._gate:
            self._waiting -= len(jobs)
        answer(jobs)

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
        if self._lost_at is None:  # a job that has waited for long in the queue still may try again
            return max(job.deadline, time.monotonic() + LAST_SECONDS)
        return min(job.deadline, max(self._lost_at + self._retry_seconds, time.monotonic() + LAST_SECONDS))

    def _explain(self, error: psycopg.Error) -> StoreError:
        words = in_words(error, self._place)
        words.__cause__ = error
        return words
