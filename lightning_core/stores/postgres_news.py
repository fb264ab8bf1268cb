"""What the server tells without being asked: a connection that LISTENs, and wakes who waits.

One thread sleeps on one connection until a notice comes, so waiting costs nothing while nothing
happens. When the connection breaks it makes a new one, and wakes all: they look for what they missed.
"""

from __future__ import annotations

import asyncio
import json
import selectors
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

import psycopg
from psycopg import Connection
from psycopg.sql import SQL, Identifier

from lightning_core.stores.postgres_lines import PAUSES
from lightning_core.stores.waiting import QUEUE, Bells, Waiters, cancelled_of

MOST_BYTES = 7900
"""A notice holds less than 8000."""


def finished(rollout_ids: Iterable[str]) -> list[str]:
    """The notices that these rollouts are finished."""
    return [_notice("finished", *some) for some in _in_parts(rollout_ids)]


def queued() -> str:
    """The notice that something may be leased."""
    return _notice("queued")


def cancelled(workers: Iterable[str]) -> list[str]:
    """The notices that something these workers held was cancelled."""
    return [_notice("cancelled", *some) for some in _in_parts(workers)]


def _notice(*words: str) -> str:
    written = json.dumps(words)  # ASCII, whatever the ids are made of
    return written if len(written) <= MOST_BYTES else json.dumps(["look"])


def _in_parts(words: Iterable[str]) -> Iterator[list[str]]:
    part: list[str] = []
    room = MOST_BYTES
    for word in words:
        size = len(json.dumps(word)) + 2
        if part and (size > room - 50):
            yield part
            part, room = [], MOST_BYTES
        part.append(word)
        room -= size
    if part:
        yield part


class PostgresNews:
    """Rings `bells` and wakes `waiters` at the notices on `channel`."""

    def __init__(
        self, connect: Callable[[], Connection], channel: str, waiters: Waiters, bells: Bells
    ) -> None:
        self._connect = connect
        self._channel = channel
        self._waiters = waiters
        self._bells = bells
        self._closing = threading.Event()
        self._alarm: socket.socket
        self._ear: socket.socket
        self._thread: threading.Thread

    async def open(self) -> None:
        """Start to listen. Raises psycopg's errors."""
        connection = await asyncio.to_thread(self._listen)
        self._alarm, self._ear = socket.socketpair()
        self._thread = threading.Thread(
            target=self._work, args=(connection,), name="store postgresql news", daemon=True
        )
        self._thread.start()

    async def close(self) -> None:
        """Hang up; after `open` only."""
        self._closing.set()
        self._alarm.send(b"x")
        await asyncio.to_thread(self._thread.join)
        self._alarm.close()
        self._ear.close()

    def _listen(self) -> Connection:
        connection = self._connect()
        try:
            connection.execute(SQL("LISTEN {}").format(Identifier(self._channel)), prepare=False)
        except BaseException:
            connection.close()
            raise
        return connection

    # in the thread ------------------------------------------------------------------------
    def _work(self, connection: Connection | None) -> None:
        while not self._closing.is_set():
            if connection is None:
                connection = self._again()
                continue
            with suppress(psycopg.Error, OSError):  # it broke
                self._hear(connection)
            connection.close()
            connection = None

    def _again(self) -> Connection | None:
        """A new connection, once there is one; None if the store is closed before."""
        pauses = iter(PAUSES)
        while not self._closing.wait(next(pauses, PAUSES[-1])):
            try:
                connection = self._listen()
            except psycopg.Error:
                continue
            self._look()
            return connection
        return None

    def _hear(self, connection: Connection) -> None:
        """Pass on what is told until the store is closed. Raises if the connection breaks."""
        with selectors.DefaultSelector() as selector:
            selector.register(connection.fileno(), selectors.EVENT_READ)
            selector.register(self._ear, selectors.EVENT_READ)
            while not self._closing.is_set():
                selector.select()
                connection.pgconn.consume_input()
                while (notice := connection.pgconn.notifies()) is not None:
                    self._take(notice.extra)

    def _take(self, written: bytes) -> None:
        try:
            self._tell(*json.loads(written))
        except (ValueError, TypeError):  # another program's: anybody may notify on any channel
            self._look()

    def _tell(self, kind: str, *words: str) -> None:
        if kind == "finished":
            self._waiters.finished(words)
        elif kind == "queued":
            self._bells.ring(QUEUE)
        elif kind == "cancelled":
            for worker in words:
                self._bells.ring(cancelled_of(worker))
        else:
            self._look()

    def _look(self) -> None:
        """Wake everybody: something may have happened that was not heard."""
        self._waiters.wake_all()
        self._bells.ring_all()
