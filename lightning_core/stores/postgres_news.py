"""What the server tells without being asked: a connection that LISTENs, and wakes who waits.

One thread sleeps on one connection until a notice comes, so waiting costs nothing while nothing
happens. When the connection breaks it makes a new one, and wakes all: they look for what they missed.

Each notice wakes every process that LISTENs to its channel, and a piece of the server for each that
LISTENs to any. So there is a channel for each kind, and nobody LISTENs before somebody waits for it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import selectors
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import psycopg
from psycopg import Connection
from psycopg.sql import SQL, Identifier

from lightning_core.stores.postgres_lines import PAUSES
from lightning_core.stores.postgres_statements import Notice
from lightning_core.stores.postgres_url import may_pass
from lightning_core.stores.waiting import QUEUE, Bells, Waiters, cancelled_of

MOST_BYTES = 7900
"""A notice holds less than 8000."""
QUEUED, FINISHED, CANCELLED = KINDS = ("queued", "finished", "cancelled")
LOOK = "look"
"""In place of names that no notice can hold."""


@dataclass(frozen=True, slots=True)
class Channels:
    """Where the store in a schema tells its news, and what it tells."""

    schema: str

    def of(self, kind: str) -> str:
        """The channel of a kind; the name of one has less than 64 bytes."""
        short = len(self.schema) < 50
        return f"{self.schema if short else hashlib.sha1(self.schema.encode()).hexdigest()} {kind}"

    def queued(self) -> list[Notice]:
        """That something may be leased."""
        return [(self.of(QUEUED), "[]")]

    def finished(self, rollout_ids: Iterable[str]) -> list[Notice]:
        """That these rollouts are finished."""
        return [(self.of(FINISHED), _written(some)) for some in _in_parts(rollout_ids)]

    def cancelled(self, workers: Iterable[str]) -> list[Notice]:
        """That something these workers held was cancelled."""
        return [(self.of(CANCELLED), _written(some)) for some in _in_parts(workers)]


def _written(words: Sequence[str]) -> str:
    written = json.dumps(words)  # ASCII, whatever the ids are made of
    return written if len(written) <= MOST_BYTES else LOOK


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
    """Rings `bells` and wakes `waiters` at the notices on `channels`."""

    def __init__(
        self, connect: Callable[[], Connection], channels: Channels, waiters: Waiters, bells: Bells
    ) -> None:
        self._connect = connect
        self._kinds = {channels.of(kind): kind for kind in KINDS}
        self._waiters = waiters
        self._bells = bells
        self._wanted: set[str] = set()
        """The kinds that somebody has waited for."""
        self._heard: set[str] = set()
        """Those of them that the connection LISTENs to."""
        self._closing = threading.Event()
        self._alarm: socket.socket
        self._ear: socket.socket
        self._thread: threading.Thread

    async def open(self) -> None:
        """Connect, now or once a server is back that has just gone. Raises psycopg's other errors."""
        connection = await asyncio.to_thread(self._first)
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

    def listen(self, kind: str) -> None:
        """Hear of this kind from soon on; who waits for work or for an end is then woken to look for it. What
        is cancelled before is not told."""
        if kind not in self._wanted:
            self._wanted.add(kind)
            self._alarm.send(b"x")

    def _first(self) -> Connection | None:
        try:
            return self._connected()
        except psycopg.Error as error:
            if may_pass(error):
                return None
            raise

    def _connected(self) -> Connection:
        connection = self._connect()
        connection.add_notify_handler(lambda notice: self._take(notice.channel, notice.payload))
        return connection

    # in the thread ------------------------------------------------------------------------
    def _work(self, connection: Connection | None) -> None:
        while connection is not None or (connection := self._again()) is not None:
            with suppress(psycopg.Error, OSError):  # it broke
                self._hear(connection)
            connection.close()
            connection = None

    def _again(self) -> Connection | None:
        """A new connection, once there is one; None if the store is closed before."""
        pauses = iter(PAUSES)
        while not self._closing.wait(next(pauses, PAUSES[-1])):
            with suppress(psycopg.Error):
                connection = self._connected()
                self._heard = set()
                self._listen(connection)
                self._look()
                return connection
        return None

    def _hear(self, connection: Connection) -> None:
        """Pass on what is told until the store is closed. Raises if the connection breaks."""
        with selectors.DefaultSelector() as selector:
            selector.register(connection.fileno(), selectors.EVENT_READ)
            selector.register(self._ear, selectors.EVENT_READ)
            while not self._closing.is_set():
                for kind in self._listen(connection):
                    self._look_for(kind)
                if any(key.fileobj is self._ear for key, _ in selector.select()):
                    self._ear.recv(4096)
                connection.pgconn.consume_input()
                while (notice := connection.pgconn.notifies()) is not None:
                    self._take(notice.relname.decode(), notice.extra.decode())

    def _listen(self, connection: Connection) -> set[str]:
        """LISTEN to what is wanted; returns the kinds of which nothing was heard before."""
        new = self._wanted - self._heard
        try:
            for channel, kind in self._kinds.items():
                if kind in new:
                    connection.execute(SQL("LISTEN {}").format(Identifier(channel)), prepare=False)
        except BaseException:
            connection.close()
            raise
        self._heard |= new
        return new

    def _take(self, channel: str, written: str) -> None:
        try:
            self._tell(self._kinds[channel], json.loads(written))
        except (ValueError, TypeError):  # another program's: anybody may notify on any channel
            self._look()

    def _tell(self, kind: str, words: Sequence[str]) -> None:
        if kind == FINISHED:
            self._waiters.finished(words)
        elif kind == QUEUED:
            self._bells.ring(QUEUE)
        else:
            for worker in words:
                self._bells.ring(cancelled_of(worker))

    def _look_for(self, kind: str) -> None:
        """Wake who waits for this: it may have happened before it could be heard."""
        if kind == FINISHED:
            self._waiters.wake_all()
        elif kind == QUEUED:
            self._bells.ring(QUEUE)

    def _look(self) -> None:
        """Wake everybody: something may have happened that was not heard."""
        self._waiters.wake_all()
        self._bells.ring_all()
