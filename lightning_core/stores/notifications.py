"""Waking those who wait for rollouts to finish, for work or for a cancellation, within one process.

A waiter sleeps on its own event loop; what it waits for may happen on another thread. A store that is shared
between processes passes on what the others tell, or looks now and then.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

log = logging.getLogger(__name__)
LONGEST_PAUSE = 1.0
"""Seconds between two tries to connect to a server."""
Topic = tuple[str, str]
"""A kind of event, and the id it happened to."""
QUEUED, FINISHED, CANCELLED = KINDS = ("queued", "finished", "cancelled")
QUEUE: Topic = (QUEUED, "")
"""A rollout is queued."""


def finished_of(rollout_id: str) -> Topic:
    """This rollout is finished."""
    return FINISHED, rollout_id


def cancelled_of(worker: str) -> Topic:
    """Something that this worker held is cancelled."""
    return CANCELLED, worker


Look = Callable[[set[Topic]], Awaitable[tuple[set[Topic], float]]]
"""Returns the topics that have not happened yet, and in how many seconds to look again."""


class Waiter:
    """One sleeper, and the topics that it has not heard of yet."""

    def __init__(self, topics: Iterable[Topic]) -> None:
        self.pending = set(topics)
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def wake(self) -> None:
        """Wake the sleeper, from any thread."""
        with suppress(RuntimeError):  # its loop is closed, and the sleeper gone
            self._loop.call_soon_threadsafe(self._event.set)

    async def sleep(self, seconds: float | None) -> bool:
        """True once woken since the last sleep, False after `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return True


class Notifications:
    """All sleepers of one store, found by topic."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiters: defaultdict[Topic, set[Waiter]] = defaultdict(set)

    @contextmanager
    def waiting(self, topics: Iterable[Topic]) -> Iterator[Waiter]:
        """A waiter that is woken when each of the topics was told once from now on."""
        waiter = Waiter(topics)
        with self._lock:
            for topic in waiter.pending:
                self._waiters[topic].add(waiter)
        try:
            yield waiter
        finally:
            with self._lock:
                self._forget(waiter)

    async def wait(self, topics: Iterable[Topic], timeout: float | None, look: Look) -> set[Topic]:
        """Wait until all of the topics have happened or `timeout` seconds have passed; those that have not.

        Looks before it sleeps, whenever all were told, and when `look` asked for it.
        """
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        pending = set(topics)
        while pending:
            with self.waiting(pending) as waiter:
                missing, again = await look(pending)
                self.tell(pending - missing)
                pending, left = missing, deadline - time.monotonic()
                if not pending or left <= 0:
                    break
                await waiter.sleep(min(left, again))
        return pending

    def tell(self, topics: Iterable[Topic]) -> None:
        """These have happened; wakes each waiter whose last one is among them. From any thread."""
        with self._lock:
            for topic in topics:
                for waiter in self._waiters.pop(topic, ()):
                    waiter.pending.discard(topic)
                    if not waiter.pending:
                        waiter.wake()

    def wake(self, *kinds: str) -> None:
        """Wake all who wait for these kinds, to look for themselves: something may have been missed."""
        with self._lock:
            waiters = {one for topic, some in self._waiters.items() if topic[0] in kinds for one in some}
            for waiter in waiters:
                waiter.wake()

    def _forget(self, waiter: Waiter) -> None:
        for topic in waiter.pending:
            others = self._waiters.get(topic, set())
            others.discard(waiter)
            if not others:
                self._waiters.pop(topic, None)


class Listener(ABC):
    """A thread that passes on what other users of a store tell. It begins when somebody waits first.

    What was told before it hears, or while the connection is down, is missed. So whenever it begins to hear,
    those who wait for work or for an end are woken to look for themselves; a missed cancellation shows in the
    next heartbeat.
    """

    def __init__(self, name: str, notifications: Notifications) -> None:
        self.name, self.notifications = name, notifications
        self.wanted: set[str] = set()
        """The kinds that somebody has waited for."""
        self.closing = threading.Event()
        self.lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def listen(self, kind: str) -> None:
        """Hear of this kind from soon on."""
        with self.lock:
            if kind in self.wanted or self.closing.is_set():
                return
            self.wanted.add(kind)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self.name, daemon=True)
                self._thread.start()
            else:
                self.stir()

    async def close(self) -> None:
        """End the thread, once the server has answered."""
        with self.lock:
            self.closing.set()
            self.stir()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    @abstractmethod
    def stir(self) -> None:
        """Have `hear` look at `wanted` and `closing`. The lock is held."""

    @abstractmethod
    def hear(self) -> None:
        """Connect, and pass on what is wanted until the store is closed. Raises if the connection breaks."""

    def _work(self) -> None:
        pause = 0.0
        while not self.closing.wait(pause):
            began = time.monotonic()
            try:
                self.hear()
            except Exception:  # boundary: the operations of those who wait say it
                log.debug("the %s broke off", self.name, exc_info=True)
            worked = time.monotonic() - began > LONGEST_PAUSE
            pause = 0.05 if worked else min(LONGEST_PAUSE, max(0.05, 2 * pause))
