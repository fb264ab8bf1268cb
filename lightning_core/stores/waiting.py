"""Waking those who wait for rollouts to finish, for work or for a cancellation, within one process.

A waiter sleeps on its own event loop; the finish may happen on another thread. Work done by other
processes is not seen here: a store that is shared between processes also looks now and then.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from threading import Lock


class Waiter:
    """One sleeper, and the rollouts whose end it has not heard of."""

    def __init__(self, rollout_ids: Iterable[str] = ()) -> None:
        self.pending = set(rollout_ids)
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def wake(self) -> None:
        """Wake the sleeper, from any thread."""
        with suppress(RuntimeError):  # its loop is closed: nobody sleeps there any more
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


class Waiters:
    """All sleepers of one store, found by rollout id."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._by_rollout: defaultdict[str, set[Waiter]] = defaultdict(set)

    @contextmanager
    def waiting(self, rollout_ids: Iterable[str]) -> Iterator[Waiter]:
        """A waiter that is woken when all the rollouts have finished."""
        waiter = Waiter(rollout_ids)
        with self._lock:
            for rollout_id in waiter.pending:
                self._by_rollout[rollout_id].add(waiter)
        try:
            yield waiter
        finally:
            with self._lock:
                self._forget(waiter)

    def finished(self, rollout_ids: Iterable[str]) -> None:
        """Tell that these rollouts are finished; wakes each waiter whose last one is among them."""
        with self._lock:
            for rollout_id in rollout_ids:
                for waiter in self._by_rollout.pop(rollout_id, ()):
                    waiter.pending.discard(rollout_id)
                    if not waiter.pending:
                        waiter.wake()

    def wake_all(self) -> None:
        """Wake every sleeper, to look for itself: ends may have been missed."""
        with self._lock:
            for waiter in {waiter for waiters in self._by_rollout.values() for waiter in waiters}:
                waiter.wake()

    def _forget(self, waiter: Waiter) -> None:
        for rollout_id in waiter.pending:
            others = self._by_rollout.get(rollout_id)
            if others is not None:
                others.discard(waiter)
                if not others:
                    del self._by_rollout[rollout_id]


class Bells:
    """News without content: whoever listens to a topic is woken when it is rung."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._listeners: defaultdict[str, set[Waiter]] = defaultdict(set)

    @contextmanager
    def listening(self, topic: str) -> Iterator[Waiter]:
        """A waiter that is woken by the first ring from now on."""
        waiter = Waiter()
        with self._lock:
            self._listeners[topic].add(waiter)
        try:
            yield waiter
        finally:
            with self._lock:
                self._listeners[topic].discard(waiter)
                if not self._listeners[topic]:
                    del self._listeners[topic]

    def ring(self, topic: str) -> None:
        """Wake all who listen to the topic, from any thread."""
        with self._lock:
            for waiter in self._listeners.get(topic, ()):
                waiter.wake()

    def ring_all(self) -> None:
        """Wake all who listen to anything: rings may have been missed."""
        with self._lock:
            for waiter in {waiter for waiters in self._listeners.values() for waiter in waiters}:
                waiter.wake()


QUEUE = "queue"
"""Rung when a rollout is queued."""


def cancelled_of(worker: str) -> str:
    """Rung when something that this worker holds is cancelled."""
    return f"cancelled {worker}"
