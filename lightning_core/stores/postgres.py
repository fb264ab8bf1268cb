"""The store in a PostgreSQL database: many machines may share it.

What a method has returned from survives the death of every client and of the server. Leases run by the
server's clock: those of many machines need not agree.

When an answer to COMMIT is lost, the transaction may have been committed. So each writer has a row with the
number of its last transaction, by which the next connection finds out.
"""

from __future__ import annotations

import asyncio
import secrets
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

from lightning_core.errors import ConfigError, StoreError
from lightning_core.stores.notifications import Notifications, Topic
from lightning_core.stores.rows import Row
from lightning_core.stores.sql import SqlTransaction
from lightning_core.stores.table_store import TableDriver, TableStore
from lightning_core.stores.workers import Job, Worker

try:
    import psycopg
    from psycopg import Connection, Cursor, Pipeline
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
from lightning_core.stores.postgres_listener import Channels, Listener

LOOK_SECONDS = 30.0
"""How often one who waits looks for himself, should a notice ever be missed."""
OPEN_SECONDS = 10.0
"""How long to wait at the start for a server that is just starting itself; a wrong URL is told then."""
MOST = 64
"""How many operations share a transaction."""
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
        channels = Channels(place.schema)
        self._listener = Listener(lambda: connect(place), channels, notifications)
        super().__init__(
            Worker(_Writer(place, channels, notifications), server_timeout=server_timeout),
            Worker(_Reader(place, notifications), server_timeout=server_timeout),
            notifications,
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

    async def __aexit__(self, *exc: object) -> None:
        await self._listener.close()
        await super().__aexit__(*exc)

    def _listen(self, kind: str) -> None:
        self._listener.listen(kind)

    def _look_seconds(self) -> float:
        return LOOK_SECONDS


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


class _Reader(TableDriver[PostgresConnection]):
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
    def __init__(self, place: Place, channels: Channels, notifications: Notifications) -> None:
        super().__init__(place, notifications)
        self._channels = channels
        self._name = secrets.token_hex(8)
        self._number = 0
        """Of the transaction that was sent last."""

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
