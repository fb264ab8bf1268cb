"""The store in a PostgreSQL database: many machines may share it.

What a method has returned from survives the death of every client and of the server. Leases run by the
server's clock: those of many machines need not agree.

When an answer to COMMIT is lost, the transaction may have been committed. So each writer has a row with the
number of its last transaction, by which the next connection finds out.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import selectors
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

from lightning_core.errors import ConfigError, StoreError
from lightning_core.stores.notifications import CANCELLED, KINDS, Listener, Notifications, Topic
from lightning_core.stores.rows import Row
from lightning_core.stores.sql import SqlTransaction
from lightning_core.stores.table_store import TableStore
from lightning_core.stores.workers import Driver, Job, StoreWorker

try:
    import psycopg
    from psycopg import Connection, Cursor, Pipeline
    from psycopg.sql import SQL, Identifier
except ImportError as error:
    raise ConfigError(
        "a postgresql:// store needs its driver: pip install 'agent-lightning-core[postgres]'"
    ) from error

from lightning_core.stores.postgres_connection import (
    DIALECT,
    Place,
    connect,
    in_words,
    may_pass,
    opened,
    place_of,
)

LOOK_SECONDS = 30.0
"""How often one who waits looks for himself, should a notice ever be missed."""
OPEN_SECONDS = 10.0
"""How long to wait at the start for a server that is just starting itself; a wrong URL is told then."""
MOST_BYTES = 7900
"""A notice holds less than 8000."""
ENDED = "UPDATE writers SET number = ? WHERE name = ?"
NOTIFY = "SELECT count(pg_notify(channel, notice)) FROM unnest(?::text[], ?::text[]) AS told(channel, notice)"
TELLING = f"{ENDED} RETURNING ({NOTIFY})"


class PostgresStore(TableStore):
    """`postgresql://user:password@host:port/database`, with `?schema=…` for another place in it."""

    def __init__(self, url: str, *, server_timeout: float = 60.0) -> None:
        """`server_timeout`: how long an operation waits for a server that is gone to come back."""
        self._place = place = place_of(url)
        self.name = place.name
        self._server_timeout = server_timeout
        notifications = Notifications()
        channels = NoticeChannels(place.schema)
        super().__init__(
            StoreWorker(_Writer(place, channels, notifications), server_timeout=server_timeout),
            StoreWorker(_Reader(place, notifications), server_timeout=server_timeout),
            notifications,
            look_seconds=LOOK_SECONDS,
            listener=PostgresListener(lambda: connect(place), channels, notifications),
        )

    async def __aenter__(self) -> PostgresStore:
        deadline = time.monotonic() + min(OPEN_SECONDS, self._server_timeout)
        while True:
            try:
                await self._writer.open()
                break
            except psycopg.Error as error:
                if not may_pass(error, first=True) or time.monotonic() > deadline:
                    raise in_words(error, self._place) from error
            await asyncio.sleep(0.05)
        await self._reader.open(connect=False)
        return self


class PostgresConnection(SqlTransaction):
    """A connection to the store's schema.

    In a pipeline, a statement whose answer is not read goes with the next one that is: a round trip less.
    """

    def __init__(self, raw: Connection) -> None:
        super().__init__()
        self.raw = raw
        self.pipeline: Pipeline | None = None

    def begin(self) -> None:
        super().begin()
        self.wrote = False
        self.answered = True
        """Whether all statements were answered."""

    def rows(self, query: str, *values: Any) -> list[Row]:
        return self.raw.execute(_words(query), values, binary=True).fetchall()

    def run(self, statement: str, rows: Iterable[Row]) -> Callable[[], int]:
        cursor = self._send(statement, rows)

        def counted() -> int:
            if not self.answered and self.pipeline is not None:
                self.pipeline.sync()
                self.answered = True
            return cursor.rowcount

        return counted

    def _send(self, statement: str, rows: Iterable[Row]) -> Cursor:
        self.wrote, self.answered = True, False
        given = list(rows)
        if len(given) == 1:
            return self.raw.execute(_words(statement), given[0])
        cursor = self.raw.cursor()
        cursor.executemany(_words(statement), given)
        return cursor


@cache
def _words(statement: str) -> Any:
    return statement.format_map(DIALECT).replace("?", "%b")


class _Reader(Driver[PostgresConnection]):
    """Each statement sees what was committed before it."""

    def __init__(self, place: Place, notifications: Notifications) -> None:
        super().__init__(notifications)
        self.name = place.name
        self._place = place

    def connect(self) -> PostgresConnection:
        return PostgresConnection(opened(self._place))

    def close(self, connection: PostgresConnection) -> None:
        connection.raw.close()

    @contextmanager
    def transaction(self, connection: PostgresConnection, jobs: Sequence[Job]) -> Iterator[list[Topic]]:
        yield []

    def lost(self, error: Exception) -> bool:
        if not isinstance(error, psycopg.Error) or not may_pass(error):
            return False
        return error.sqlstate is None or error.sqlstate.startswith(("08", "57P", "25P"))

    def may_pass(self, error: Exception) -> bool:
        return isinstance(error, psycopg.Error) and may_pass(error)

    def explain(self, error: Exception) -> Exception:
        if isinstance(error, psycopg.Error):
            words = in_words(error, self._place)
        elif isinstance(error, OverflowError | struct.error):
            words = StoreError(f"a PostgreSQL store keeps integers of 64 bits: {error}")
        else:
            return error
        words.__cause__ = error
        return words


class _Writer(_Reader):
    def __init__(self, place: Place, channels: NoticeChannels, notifications: Notifications) -> None:
        super().__init__(place, notifications)
        self._channels = channels
        self._name = secrets.token_hex(8)
        self._number = 0
        """Number of the transaction that was sent last."""

    def connect(self) -> PostgresConnection:
        connection = super().connect()
        statement = "INSERT INTO writers (name, number) VALUES (?, 0) ON CONFLICT (name) DO NOTHING"
        try:
            connection.run(statement, [(self._name,)])
        except BaseException:
            connection.raw.close()
            raise
        return connection

    def close(self, connection: PostgresConnection) -> None:
        with suppress(psycopg.Error):
            if not self.unsure:
                connection.run("DELETE FROM writers WHERE name = ?", [(self._name,)])
        connection.raw.close()

    def carry_out(self, connection: PostgresConnection, jobs: Sequence[Job]) -> None:
        if connection.raw.closed:
            raise psycopg.OperationalError("the connection is closed")
        super().carry_out(connection, jobs)

    def committed(self, connection: PostgresConnection) -> bool:
        """Waits for the end of the last transaction, should it still run."""
        found = connection.rows("SELECT number FROM writers WHERE name = ? {lock}", self._name)
        return found == [(self._number,)]

    @contextmanager
    def transaction(self, connection: PostgresConnection, jobs: Sequence[Job]) -> Iterator[list[Topic]]:
        connection.begin()
        try:
            with connection.raw.pipeline() as connection.pipeline:
                connection.raw.execute("BEGIN")
                yield connection.topics
                if connection.wrote:
                    self._end(connection)
                    self.unsure = jobs
                connection.raw.execute("COMMIT")
        except BaseException:
            with suppress(psycopg.Error):
                connection.raw.rollback()
            raise
        finally:
            connection.pipeline = None

    def _end(self, connection: PostgresConnection) -> None:
        self._number += 1
        mine = (self._number, self._name)
        if notices := self._channels.notices(dict.fromkeys(connection.topics)):
            channels, words = zip(*notices, strict=True)
            connection.run(TELLING, [(*mine, list(channels), list(words))])
        else:
            connection.run(ENDED, [mine])


# notices ----------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class NoticeChannels:
    """Where the store in a schema tells what happened, and in which words.

    Each notice wakes every process that LISTENs to its channel, and a piece of the server for each that
    LISTENs to any. So there is a channel for each kind, and a store LISTENs when somebody waits for it.
    """

    schema: str

    def of(self, kind: str) -> str:
        """The channel of a kind; the name of one has less than 64 bytes."""
        return f"{hashlib.sha1(self.schema.encode()).hexdigest()} {kind}"

    def notices(self, topics: Iterable[Topic]) -> list[tuple[str, str]]:
        """Channel and words of the notices that tell of these topics: names as JSON, which is ASCII; nothing
        where a notice can't hold them, and those who wait look for themselves."""
        names: dict[str, list[str]] = {}
        for kind, name in topics:
            names.setdefault(kind, []).append(name)
        words = {kind: json.dumps(some) for kind, some in names.items()}
        return [(self.of(kind), text if len(text) < MOST_BYTES else "") for kind, text in words.items()]


class PostgresListener(Listener):
    """Sleeps on one connection until a notice comes, so waiting costs nothing while nothing happens."""

    def __init__(
        self, connect: Callable[[], Connection], channels: NoticeChannels, notifications: Notifications
    ) -> None:
        super().__init__("store notifications", notifications)
        self._connect = connect
        self._kinds = {channels.of(kind): kind for kind in KINDS}
        self._alarm: socket.socket | None = None
        """Set while there is one who hears it."""

    def stir(self) -> None:
        if self._alarm is not None:
            self._alarm.send(b"x")

    def hear(self) -> None:
        alarm, ear = socket.socketpair()
        with alarm, ear, self._connect() as connection:
            with self.lock:
                self._alarm = alarm
            try:
                self._read(connection, ear)
            finally:
                with self.lock:
                    self._alarm = None

    def _read(self, connection: Connection, ear: socket.socket) -> None:
        connection.add_notify_handler(lambda notice: self._take(notice.channel, notice.payload))
        heard: set[str] = set()
        with selectors.DefaultSelector() as selector:
            selector.register(connection.fileno(), selectors.EVENT_READ)
            selector.register(ear, selectors.EVENT_READ)
            while not self.closing.is_set():
                heard |= self._listen_to(self.wanted - heard, connection)
                if any(key.fileobj is ear for key, _ in selector.select()):
                    ear.recv(4096)
                connection.pgconn.consume_input()
                while (notice := connection.pgconn.notifies()) is not None:
                    self._take(notice.relname.decode(), notice.extra.decode())

    def _listen_to(self, new: set[str], connection: Connection) -> set[str]:
        """LISTEN to these kinds, and wake who waits for them: it may have happened before it was heard."""
        for channel, kind in self._kinds.items():
            if kind in new:
                connection.execute(SQL("LISTEN {}").format(Identifier(channel)), prepare=False)
        self.notifications.wake(*(new - {CANCELLED}))
        return new

    def _take(self, channel: str, written: str) -> None:
        kind = self._kinds[channel]
        try:
            names = json.loads(written)
            self.notifications.tell((kind, name) for name in names)
        except (ValueError, TypeError):  # too many to be named, or another program's
            self.notifications.wake(kind)
