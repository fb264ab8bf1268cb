"""A thread that owns one connection to Redis and carries out what others ask of it.

An operation is a generator: it yields commands, is sent their answers, and so on until it returns. The
thread takes a step of all operations at hand in one round trip, so that under load many callers, on any
thread or event loop, share its price. It uses the driver's blocking connection: measured over loopback
with calls of 6 KB, an operation among 64 at once takes 24 µs, with the driver's asyncio connections 93.

When the connection is lost, every operation that was under way begins anew on the next one, and is told so:
it must find what its first try may have done, and do nothing twice.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import redis

from lightning_core.errors import LightningError, StoreError
from lightning_core.stores.jobs import Job, answer
from lightning_core.stores.redis_link import Connection, RedisLink, may_pass

T = TypeVar("T")
Commands = list[tuple[Any, ...]]
Steps = Generator[Commands, list[Any], T]
Operation = Callable[[int], Steps[T]]
"""Given how many tries were made before: they may have been carried out."""


@dataclass(slots=True, eq=False)
class _Job(Job):
    operation: Operation[Any]
    steps: Steps[Any] | None = None
    commands: Commands = field(default_factory=list)
    tries: int = 0
    lost_at: float | None = None
    """When the connection was lost over it first."""
    done: bool = False

    def start(self) -> None:
        self.steps = self.operation(self.tries)
        self.advance(None)

    def advance(self, answers: list[Any] | None) -> None:
        """Go on to the next commands, or to the end."""
        assert self.steps is not None
        try:
            self.commands = self.steps.send(answers)  # type: ignore[arg-type]  # None starts it
        except StopIteration as end:
            self.result, self.done = end.value, True
        except Exception as error:  # the caller's, whatever it is: the thread goes on
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        self.error, self.done = error, True


class RedisThread:
    """Carries out operations on one connection."""

    def __init__(self, link: RedisLink, *, patience: float, most: int = 256) -> None:
        """`patience`: for how many seconds a lost connection is tried again."""
        self._link = link
        self._patience = patience
        self._most = most
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._gate = threading.Lock()
        self._open = False
        self._closing = threading.Event()
        self._connection: Connection | None = None
        self._pause = 0.0
        self._lost_at: float | None = None
        """When the server went away that is still away."""
        self._thread = threading.Thread(target=self._work, name=f"store {link.url.shown}", daemon=True)

    def open(self) -> None:
        self._thread.start()
        self._open = True

    async def close(self) -> None:
        """Finish what was handed in, if the server can be reached, then close the connection."""
        with self._gate:
            if not self._open:
                return
            self._open = False
            self._closing.set()
            self._jobs.put(None)
        await asyncio.to_thread(self._thread.join)

    async def run(self, operation: Operation[T]) -> T:
        """What the operation returns. It is carried out even if the caller is cancelled."""
        job = _Job(operation)
        with self._gate:
            if not self._open:
                raise StoreError(
                    f"the store {self._link.url.shown!r} is not open: use it inside `async with store`"
                )
            self._jobs.put(job)
        result: T = await job.future
        return result

    # in the thread ------------------------------------------------------------------------
    def _work(self) -> None:
        jobs: list[_Job] = []
        open_ = True
        while open_ or jobs:
            new, open_ = self._gather(self._most - len(jobs), wait=not jobs) if open_ else ([], False)
            for job in new:
                job.start()
            jobs += new
            self._take_step([job for job in jobs if not job.done])
            answer([job for job in jobs if job.done])
            jobs = [job for job in jobs if not job.done]
        if self._connection is not None:
            self._connection.disconnect()

    def _gather(self, most: int, *, wait: bool) -> tuple[list[_Job], bool]:
        """The jobs that have come; False once asked to close."""
        jobs: list[_Job] = []
        with suppress(Empty):
            while len(jobs) < most:
                job = self._jobs.get(block=wait and not jobs)
                if job is None:
                    return jobs, False
                jobs.append(job)
        return jobs, True

    def _take_step(self, jobs: list[_Job]) -> None:
        if not jobs:
            return
        try:
            self._exchange(jobs)
            self._pause, self._lost_at = 0.0, None
        except StoreError as error:  # of a new connection: another try would not help
            for job in jobs:
                if not job.done:
                    job.fail(error)
        except redis.RedisError as error:
            self._start_anew(jobs, error)

    def _exchange(self, jobs: list[_Job]) -> None:
        """Send the commands of all jobs in one piece and give each its answers. Raises one of `LOST`."""
        if self._connection is None:
            self._connection = self._link.connect()
        packed: list[bytes] = []
        for job in jobs:
            try:
                packed += self._connection.pack_commands(job.commands)
            except redis.DataError as error:  # a value of a type that has no bytes
                job.fail(self._explained(error))
        self._connection.send_packed_command([b"".join(packed)])
        for job in jobs:
            if not job.done:
                answers = [_read(self._connection) for _ in job.commands]
                refused = next((one for one in answers if isinstance(one, Exception)), None)
                if refused is None:
                    job.advance(answers)
                else:
                    job.fail(self._explained(refused))

    def _start_anew(self, jobs: list[_Job], error: redis.RedisError) -> None:
        """Prepare the next try of those that are not done; give up those that have waited too long."""
        if self._connection is not None:
            self._connection.disconnect()
            self._connection = None
        now = time.monotonic()
        # waited for once, not anew by each job: whoever ends because it stays away has more to ask of it
        self._lost_at = self._lost_at or now
        for job in jobs:
            if not job.done:
                job.lost_at = job.lost_at or self._lost_at
                if self._closing.is_set() or now - job.lost_at >= self._patience:
                    job.fail(self._explained(error))
                else:
                    job.tries += 1
                    job.start()
        if not all(job.done for job in jobs):
            self._closing.wait(self._pause * random.uniform(0.5, 1.0))
            self._pause = min(2.0, max(0.05, 2 * self._pause))

    def _explained(self, error: Exception) -> LightningError:
        words = self._link.in_words(error)
        words.__cause__ = error
        return words


def _read(connection: Connection) -> Any:
    """The next answer; one that refuses its command is returned, so that the others are read too."""
    try:
        return connection.read_response()
    except redis.ResponseError as error:
        if may_pass(error):
            raise
        return error
