"""A thread that owns one SQLite connection and works through what others ask of it.

Callers on any thread or event loop hand in an operation and await its result. The thread takes all
that have gathered, runs them in one transaction, and answers after the commit (group commit): under
load the price of a transaction is shared, and nobody is told of a write that is not yet durable.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from lightning_core.errors import LightningError, StoreError
from lightning_core.stores.jobs import Job, answer
from lightning_core.stores.sqlite_file import connect, in_words

T = TypeVar("T")
Operation = Callable[[sqlite3.Connection], T]
"""What to do with the connection. It must raise this package's own errors before it writes anything,
and may be run again from the start after a rollback."""


@dataclass(slots=True, eq=False)
class _Job(Job):
    operation: Operation[Any]

    def run(self, connection: sqlite3.Connection) -> None:
        """Run the operation; a refusal by our own rules is its result, any other error is raised."""
        self.result, self.error = None, None
        try:
            self.result = self.operation(connection)
        except LightningError as error:
            self.error = error


class SqliteThread:
    """Runs operations on the file at `path`; one that `writes` runs them in transactions."""

    def __init__(self, path: Path, *, writes: bool, busy_seconds: float, most: int = 256) -> None:
        self._path = path
        self._writes = writes
        self._busy_seconds = busy_seconds
        self._most = most
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._gate = threading.Lock()
        self._open = False
        self._connection: sqlite3.Connection
        self._thread = threading.Thread(target=self._work, name=f"store {path.name}", daemon=True)

    async def open(self) -> None:
        """Connect and start. Raises StoreError if the file can't be used."""
        self._connection = await asyncio.to_thread(connect, self._path, self._busy_seconds)
        self._thread.start()
        self._open = True

    async def close(self) -> None:
        """Finish what was handed in, then close the connection."""
        with self._gate:
            if not self._open:
                return
            self._open = False
            self._jobs.put(None)
        await asyncio.to_thread(self._thread.join)

    async def run(self, operation: Operation[T]) -> T:
        """The operation's result, once it is committed. It is carried out even if the caller is cancelled."""
        job = _Job(operation)
        with self._gate:
            if not self._open:
                raise StoreError(
                    f"the store {str(self._path)!r} is not open: use it inside `async with store`"
                )
            self._jobs.put(job)
        result: T = await job.future
        return result

    # in the thread ------------------------------------------------------------------------
    def _work(self) -> None:
        open_ = True
        while open_:
            jobs, open_ = self._gather()
            if jobs:
                self._carry_out(jobs)
                answer(jobs)
        self._connection.close()

    def _gather(self) -> tuple[list[_Job], bool]:
        """Wait for a job and take those that have come with it; False once asked to close."""
        job = self._jobs.get()
        jobs: list[_Job] = []
        while job is not None:
            jobs.append(job)
            if len(jobs) == self._most:
                return jobs, True
            try:
                job = self._jobs.get_nowait()
            except Empty:
                return jobs, True
        return jobs, False

    def _carry_out(self, jobs: list[_Job]) -> None:
        """Run all in one transaction; if one breaks it, run each in its own, so that only that one fails."""
        try:
            self._transaction(jobs)
        except Exception as error:
            if len(jobs) == 1 or _is(error, sqlite3.SQLITE_BUSY):
                for job in jobs:
                    job.error = self._explain(error)
            else:
                for job in jobs:
                    self._carry_out([job])

    def _transaction(self, jobs: list[_Job]) -> None:
        if self._writes:
            self._connection.execute("BEGIN IMMEDIATE")
        try:
            for job in jobs:
                job.run(self._connection)
            if self._writes:
                self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    def _explain(self, error: Exception) -> Exception:
        if isinstance(error, sqlite3.Error):
            words = in_words(error, self._path, self._busy_seconds)
        elif isinstance(error, UnicodeEncodeError):
            words = StoreError(f"a store can't keep {error.object!r}: it is not whole Unicode text")
        else:
            return error
        words.__cause__ = error
        return words


def _is(error: Exception, code: int) -> bool:
    return isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", 0) & 0xFF == code
