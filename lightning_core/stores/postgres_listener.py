"""Notifications from other users of a PostgreSQL store: a connection that LISTENs, and wakes who waits.

One thread sleeps on one connection until a notice comes, so waiting costs nothing while nothing happens. When
the connection breaks it makes a new one, and wakes all: they look for what they missed.

Each notice wakes every process that LISTENs to its channel, and a piece of the server for each that LISTENs
to any. So there is a channel for each kind, and a store LISTENs when somebody waits for it.
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

from lightning_core.stores.notifications import CANCELLED, KINDS, Notifications, Topic

MOST_BYTES = 7900
"""A notice holds less than 8000."""
PAUSES = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.0)
"""Seconds between tries to connect; the last for all further ones."""


@dataclass(frozen=True, slots=True)
class Channels:
    """Where the store in a schema tells what happened, and in which words."""

    schema: str

    def of(self, kind: str) -> str:
        """The channel of a kind; the name of one has less than 64 bytes."""
        short = len(self.schema) < 50
        return f"{self.schema if short else hashlib.sha1(self.schema.encode()).hexdigest()} {kind}"

    def notices(self, topics: Iterable[Topic]) -> list[tuple[str, str]]:
        """Channel and words of each notice that tells of these topics."""
        names: dict[str, list[str]] = {}
        for kind, name in topics:
            names.setdefault(kind, []).append(name)
        return [(self.of(kind), words) for kind, some in names.items() for words in _in_parts(some)]


def _in_parts(names: Sequence[str]) -> Iterator[str]:
    """As JSON, which is ASCII: that of the longest id takes 12 bytes for each of its characters."""
    part: list[str] = []
    room = MOST_BYTES
    for name in names:
        size = len(json.dumps(name)) + 2
        if size > room:
            yield json.dumps(part)
            part, room = [], MOST_BYTES
        part.append(name)
        room -= size
    yield json.dumps(part)


class Listener:
    """Passes on the notices on the channels. It connects when somebody waits first."""

    def __init__(
        self, connect: Callable[[], Connection], channels: Channels, notifications: Notifications
    ) -> None:
        self._connect = connect
        self._kinds = {channels.of(kind): kind for kind in KINDS}
        self._notifications = notifications
        self._lock = threading.Lock()
        self._wanted: set[str] = set()
        """The kinds that somebody has waited for."""
        self._heard: set[str] = set()
        """Those of them that the connection LISTENs to."""
        self._closing = threading.Event()
        self._alarm: socket.socket
        self._ear: socket.socket
        self._thread: threading.Thread | None = None

    def listen(self, kind: str) -> None:
        """Hear of this kind from soon on; who waits for work or for an end is then woken to look for it. What
        is cancelled before is not told."""
        with self._lock:
            if kind in self._wanted or self._closing.is_set():
                return
            self._wanted.add(kind)
            if self._thread is None:
                self._alarm, self._ear = socket.socketpair()
                self._thread = threading.Thread(target=self._work, name="store notifications", daemon=True)
                self._thread.start()
            self._alarm.send(b"x")

    async def close(self) -> None:
        """Hang up."""
        with self._lock:
            self._closing.set()
        if self._thread is not None:
            self._alarm.send(b"x")
            await asyncio.to_thread(self._thread.join)
            self._alarm.close()
            self._ear.close()

    # in the thread ------------------------------------------------------------------------
    def _work(self) -> None:
        pauses = iter(PAUSES)
        while not self._closing.wait(next(pauses, PAUSES[-1])):
            with suppress(psycopg.Error, OSError):  # it broke
                connection = self._connect()
                pauses = iter(PAUSES)
                with connection:
                    self._hear(connection)

    def _hear(self, connection: Connection) -> None:
        """Pass on what is told until the store is closed. Raises if the connection breaks."""
        connection.add_notify_handler(lambda notice: self._take(notice.channel, notice.payload))
        self._heard = set()
        with selectors.DefaultSelector() as selector:
            selector.register(connection.fileno(), selectors.EVENT_READ)
            selector.register(self._ear, selectors.EVENT_READ)
            while not self._closing.is_set():
                self._listen(connection)
                if any(key.fileobj is self._ear for key, _ in selector.select()):
                    self._ear.recv(4096)
                connection.pgconn.consume_input()
                while (notice := connection.pgconn.notifies()) is not None:
                    self._take(notice.relname.decode(), notice.extra.decode())

    def _listen(self, connection: Connection) -> None:
        """LISTEN to what is wanted, and wake who waits for it: it may have happened before it was heard."""
        new = self._wanted - self._heard
        for channel, kind in self._kinds.items():
            if kind in new:
                connection.execute(SQL("LISTEN {}").format(Identifier(channel)), prepare=False)
        self._heard |= new
        self._notifications.wake(*(new - {CANCELLED}))

    def _take(self, channel: str, written: str) -> None:
        kind = self._kinds[channel]
        try:
            names = json.loads(written)
            self._notifications.tell((kind, name) for name in names)
        except (ValueError, TypeError):  # another program's: anybody may notify on any channel
            self._notifications.wake(kind)
