"""The thread that owns a store's connection and carries out what callers on any event loop hand in.

It takes all that has gathered and lets the driver carry it out together: under load the callers share the
price of a transaction or a round trip. No caller gets an answer before the change is durable. When a server
goes away the thread connects again, and tries what it had at hand until `server_timeout` has passed.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from lightning_core.errors import LightningError, StoreError
from lightning_core.records.types import Call, Rollout
from lightning_core.stores import queue
from lightning_core.stores.notifications import LONGEST_PAUSE, Notifications, Topic
from lightning_core.stores.queue import Transaction
from lightning_core.stores.rows import Table

C = TypeVar("C", bound=Transaction)
MOST_TOGETHER = 256
"""Operations that share a transaction."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a transaction. Its locks hold for all operations of the transaction at once."""

    run: Callable[[Any], Any]
    """May return a function: its last part, for when the others have sent what they need."""
    ids: Sequence[str] = ()
    """Ids of the rollouts that it locks."""
    lease: tuple[int, str | None] | None = None
    """How many queued rollouts of which run it leases."""
    call: tuple[Call, bool] | None = None
    """The call that it records, and whether the attempt must be running."""
    new: Sequence[Rollout] = ()
    """Rollouts that it enqueues."""
    last: tuple[Table[Any], Sequence[str]] | None = None
    """The table that it reads, and the rollouts whose last attempts it reads there."""


@dataclass(slots=True, eq=False)
class Job:
    """One operation and the caller who waits for it. Made on the caller's loop."""

    operation: Operation
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    future: asyncio.Future[Any] = field(init=False)
    result: Any = None
    error: BaseException | None = None
    done: bool = False
    alone: bool = False
    """It failed together with others, so that it is carried out by itself."""
    since: float | None = None
    """When it was put off first, by `time.monotonic`."""

    def __post_init__(self) -> None:
        self.future = self.loop.create_future()

    def fail(self, error: BaseException) -> None:
        self.error, self.done = error, True

    def settle(self) -> None:
        """Hand the outcome to the caller; runs on the caller's loop."""
        if self.future.done():  # the caller was cancelled meanwhile
            return
        if self.error is None:
            self.future.set_result(self.result)
        else:
            self.future.set_exception(self.error)


class Driver(ABC, Generic[C]):
    """Carries out jobs in transactions of one database. All but `name` is called in one thread."""

    name: str
    """For messages, without a password."""

    def __init__(self, notifications: Notifications) -> None:
        self.notifications = notifications
        self.unsure: Sequence[Job] = ()
        """The jobs of the last transaction, while it is not known whether it was committed."""

    @abstractmethod
    def connect(self) -> C:
        """A connection that is ready for use."""

    @abstractmethod
    def close(self, connection: C) -> None: ...

    @abstractmethod
    def transaction(self, connection: C, jobs: Sequence[Job]) -> AbstractContextManager[list[Topic]]:
        """Begins, and commits or takes back; gives what to tell when it is committed. Sets `unsure` before it
        asks for a commit whose answer may be lost."""

    def committed(self, connection: C) -> bool:
        """Whether the last transaction was; if not, it never will be."""
        return False

    def carry_out(self, connection: C, jobs: Sequence[Job]) -> None:
        """Run all in one transaction, and set `done`. An operation raises our own errors before it writes
        anything, so such a refusal is its result; any other error takes the transaction back."""
        if self.unsure and self.committed(connection):
            for job in self.unsure:
                job.done = True
        self.unsure = ()
        pending = [job for job in jobs if not job.done]
        try:
            if pending:
                self._carry_out(connection, pending)
        except Exception as error:
            if not self.lost(error):
                self.unsure = ()
            raise
        self.unsure = ()

    def _carry_out(self, connection: C, jobs: Sequence[Job]) -> None:
        with self.transaction(connection, jobs) as topics:
            self.lock(connection, [job.operation for job in jobs])
            for job in jobs:
                job.error = None
                _take(job, job.operation.run, connection)
            for job in jobs:
                if callable(job.result):
                    _take(job, job.result)
        for job in jobs:
            job.done = True
        self.notifications.tell(topics)

    def lock(self, connection: C, operations: Sequence[Operation]) -> None:
        """Read at once what the operations of a transaction are about to change."""
        queue.lock(connection, [name for one in operations for name in one.ids])
        leases = [one.lease for one in operations if one.lease is not None]
        runs = {run_id for _, run_id in leases}
        if len(leases) > 1 and len(runs) == 1:
            connection.queue = iter(connection.due(sum(limit for limit, _ in leases), *runs))

    def lost(self, error: Exception) -> bool:
        """Whether the connection is broken, so that a new one is needed."""
        return False

    def may_pass(self, error: Exception) -> bool:
        """Whether another try of the same may do."""
        return self.lost(error)

    def concerns_all(self, error: Exception) -> bool:
        """Whether each job would fail so by itself."""
        return isinstance(error, StoreError)

    def explain(self, error: Exception) -> Exception:
        """Turns a driver's error into one for the user."""
        return error


def _take(job: Job, operation: Callable[..., Any], *given: object) -> None:
    try:
        job.result = operation(*given)
    except LightningError as error:
        job.result, job.error = None, error


class StoreWorker(Generic[C]):
    """Runs operations in a thread on one connection of a driver."""

    def __init__(self, driver: Driver[C], *, server_timeout: float = 0.0) -> None:
        """`server_timeout`: for how many seconds an operation is tried again."""
        self._driver = driver
        self._server_timeout = server_timeout
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._gate = threading.Lock()
        self._open = False
        self._closing = threading.Event()
        self._connection: C | None = None
        self._pause = 0.0
        self._lost_at: float | None = None
        """When the server went away that is still away."""
        self._thread = threading.Thread(target=self._work, name=f"store {driver.name}", daemon=True)

    async def open(self, *, connect: bool = True) -> None:
        """Start. Raises what `connect` does, unless the connection is to be made when it is needed."""
        if connect:
            self._connection = await asyncio.to_thread(self._driver.connect)
        self._thread.start()
        self._open = True

    async def close(self) -> None:
        """Finish what was handed in, without waiting for a server that is gone, then close the connection."""
        with self._gate:
            if not self._open:
                return
            self._open = False
            self._closing.set()
            self._jobs.put(None)
        await asyncio.to_thread(self._thread.join)

    async def run(self, operation: Operation) -> Any:
        """The operation's result, once it is durable. It is carried out even if the caller is cancelled."""
        job = Job(operation)
        with self._gate:
            if not self._open:
                raise StoreError(
                    f"the store {self._driver.name!r} is not open: use it inside `async with store`"
                )
            self._jobs.put(job)
        return await job.future

    # in the thread ------------------------------------------------------------------------
    def _work(self) -> None:
        jobs: list[Job] = []
        open_ = True
        while open_ or jobs:
            new, open_ = self._gather(MOST_TOGETHER - len(jobs), wait=not jobs) if open_ else ([], False)
            jobs += new
            together = [job for job in jobs if not job.alone]
            for group in ([together] if together else []) + [[job] for job in jobs if job.alone]:
                self._carry_out(group)
            _answer([job for job in jobs if job.done])
            jobs = [job for job in jobs if not job.done]
        self._disconnect()

    def _gather(self, most: int, *, wait: bool) -> tuple[list[Job], bool]:
        """The jobs that have come; False once asked to close."""
        jobs: list[Job] = []
        with suppress(Empty):
            while len(jobs) < most:
                job = self._jobs.get(block=wait and not jobs)
                if job is None:
                    return jobs, False
                jobs.append(job)
        return jobs, True

    def _carry_out(self, jobs: Sequence[Job]) -> None:
        try:
            if self._connection is None:
                self._connection = self._driver.connect()
            self._driver.carry_out(self._connection, jobs)
            self._pause, self._lost_at = 0.0, None
        except Exception as error:
            self._fail([job for job in jobs if not job.done], error)

    def _fail(self, jobs: Sequence[Job], error: Exception) -> None:
        if self._driver.lost(error):
            self._disconnect()
            self._lost_at = self._lost_at or time.monotonic()
            self._put_off(jobs, error)
            if not all(job.done for job in jobs):
                self._closing.wait(self._pause * random.uniform(0.5, 1.0))
                self._pause = min(LONGEST_PAUSE, max(0.05, 2 * self._pause))
        elif len(jobs) > 1 and not self._driver.concerns_all(error):
            for job in jobs:
                job.alone = True
        elif self._driver.may_pass(error):
            self._put_off(jobs, error)
        else:
            for job in jobs:
                job.fail(self._driver.explain(error))

    def _put_off(self, jobs: Sequence[Job], error: Exception) -> None:
        """Give up the jobs that have been tried for too long; the others are tried again.

        A server is waited for once, not by each job: who ends because it stays away has more to ask of it.
        """
        now = time.monotonic()
        for job in jobs:
            job.since = job.since or self._lost_at or now
            if self._closing.is_set() or now - job.since >= self._server_timeout:
                job.fail(self._driver.explain(error))

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._driver.close(self._connection)
            self._connection = None


class Direct(Generic[C]):
    """Runs operations where they are called, one at a time: for a driver that waits for nothing."""

    def __init__(self, driver: Driver[C]) -> None:
        self.connection = driver.connect()
        self._driver = driver
        self._lock = threading.Lock()

    async def open(self, *, connect: bool = True) -> None:
        """It is open from the beginning."""

    async def close(self) -> None:
        """It stays open, as nothing else holds what is in it."""

    async def run(self, operation: Operation) -> Any:
        """The operation's result."""
        job = Job(operation)
        try:
            with self._lock:
                self._driver.carry_out(self.connection, [job])
        except Exception as error:
            raise self._driver.explain(error) from error
        if job.error is not None:
            raise job.error
        return job.result


def _answer(jobs: Sequence[Job]) -> None:
    """Settle the jobs of each event loop in one wake-up of that loop."""
    by_loop: defaultdict[asyncio.AbstractEventLoop, list[Job]] = defaultdict(list)
    for job in jobs:
        by_loop[job.loop].append(job)
    for loop, its_jobs in by_loop.items():
        with suppress(RuntimeError):  # the loop is closed: its callers are gone
            loop.call_soon_threadsafe(_settle, its_jobs)


def _settle(jobs: Sequence[Job]) -> None:
    for job in jobs:
        job.settle()
