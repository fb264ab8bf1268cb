"""The store in a Redis server: many machines may share it.

What a method has returned from survives the death of every client at any moment, and that of the server if
it is set to `appendonly yes` and `appendfsync always`. A third connection hears of what other users did, once
somebody waits for it.

A transaction reads, the rules that all stores share decide in Python, and one script writes all of it, if
what was read is still so; if not, the transaction begins again. Each writer has a key with the number of its
last transaction, and of its connection: a new connection finds out there whether the last transaction was
committed, and one that comes late on an older connection is refused.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from lightning_core.errors import ConfigError
from lightning_core.stores import queue, rules
from lightning_core.stores.notifications import Notifications, Topic
from lightning_core.stores.rows import CALLS
from lightning_core.stores.table_store import Operation, TableDriver, TableStore
from lightning_core.stores.workers import Job, Worker
from lightning_core.types import Rollout

try:
    import redis
except ImportError as error:
    raise ConfigError(
        "a store at redis:// needs the driver of Redis: pip install 'agent-lightning-core[redis]'"
    ) from error

from lightning_core.stores.redis_connection import LOST, RedisLink, may_pass, read_url
from lightning_core.stores.redis_listener import RedisListener
from lightning_core.stores.redis_scripts import SCRIPTS
from lightning_core.stores.redis_transaction import RedisConnection, parts_of, place_of

MOST_CHANGED = 5000
"""So many rollouts are changed in one step of the server, which does nothing else meanwhile."""


class RedisStore(TableStore):
    """`redis://[user:password@]host[:port][/database][?prefix=...]`, or `rediss://` for TLS."""

    def __init__(
        self,
        url: str,
        *,
        server_timeout: float = 60.0,
        answer_seconds: float = 30.0,
        look_seconds: float = 30.0,
    ) -> None:
        """`server_timeout`: for how many seconds operations wait for a server that is gone. `answer_seconds`:
        after how long without an answer it is taken for gone. `look_seconds`: how often those who wait
        look for themselves, in case that a message did not reach them."""
        self.url = read_url(url)
        self.name = self.url.shown
        self._link = RedisLink(self.url, SCRIPTS, answer_seconds=answer_seconds)
        notifications = Notifications()
        self._listener = RedisListener(self._link, notifications)
        writer, reader = (RedisDriver(self._link, notifications, writes=writes) for writes in (True, False))
        super().__init__(
            Worker(writer, server_timeout=server_timeout),
            Worker(reader, server_timeout=server_timeout),
            notifications,
        )
        self._server_timeout = server_timeout
        self._look_for = look_seconds

    async def __aenter__(self) -> RedisStore:
        await asyncio.to_thread(self._link.check, self._server_timeout)
        await self._writer.open(connect=False)
        await self._reader.open(connect=False)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await super().__aexit__(*exc)
        await asyncio.to_thread(self._listener.close)

    async def enqueue(self, rollouts: Sequence[Rollout]) -> int:
        rules.check_ids(*rollouts)
        enqueue = super().enqueue
        return sum([await enqueue(part) for part in parts_of(rollouts, MOST_CHANGED)])

    async def cancel(self, rollout_ids: Sequence[str]) -> int:
        cancel = super().cancel
        return sum([await cancel(part) for part in parts_of(rollout_ids, MOST_CHANGED)])

    def _listen(self, kind: str) -> None:
        self._listener.listen(kind)

    def _look_seconds(self) -> float:
        return self._look_for


class _ConflictError(Exception):
    """What was read has changed before it was written."""


class RedisDriver(TableDriver[RedisConnection]):
    """Reads, and writes what the operations have left to be written."""

    def __init__(self, link: RedisLink, notifications: Notifications, *, writes: bool) -> None:
        super().__init__(notifications)
        self.name = link.url.shown
        self._link, self._writes = link, writes
        self._writer = f"writer:{secrets.token_hex(8)}"
        self._key = link.url.prefix + self._writer
        self._connections = 0
        """How many were made to write."""
        self._number = 0
        """Of the last transaction."""
        self._committed: bytes | None = None
        """The number of the last one that was committed before this connection."""

    def connect(self) -> RedisConnection:
        self._connections += self._writes
        connection = RedisConnection(self._link.connect(), self._link, self._connections)
        if self._writes:
            mine = (("HSET", self._key, "c", connection.number), ("HGET", self._key, "n"))
            try:
                _, self._committed = connection.ask(mine)
            except BaseException:
                connection.raw.disconnect()
                raise
        return connection

    def close(self, connection: RedisConnection) -> None:
        with suppress(redis.RedisError):
            if self._writes and not self.unsure:
                connection.ask([("DEL", self._key)])
        connection.raw.disconnect()

    def lost(self, error: Exception) -> bool:
        return isinstance(error, LOST)

    def may_pass(self, error: Exception) -> bool:
        return may_pass(error)

    def explain(self, error: Exception) -> Exception:
        if not isinstance(error, redis.RedisError):
            return error
        words = self._link.in_words(error)
        words.__cause__ = error
        return words

    def committed(self, connection: RedisConnection) -> bool:
        return self._committed == str(self._number).encode()

    def carry_out(self, connection: RedisConnection, jobs: Sequence[Job]) -> None:
        connection.reads_first = False
        while True:
            with suppress(_ConflictError):
                return super().carry_out(connection, jobs)
            connection.reads_first = True

    def lock(self, connection: RedisConnection, operations: Sequence[Operation]) -> None:
        calls = [one.call for one in operations if one.call is not None]
        connection.values(place_of(CALLS, call) for call, _ in calls)
        connection.look_ahead(one.last for one in operations if one.last is not None)
        new = [rollout.id for one in operations for rollout in one.new if connection.reads_first]
        queue.lock(connection, [call.rollout_id or "" for call, running in calls if running] + new)
        super().lock(connection, operations)

    @contextmanager
    def transaction(self, connection: RedisConnection, jobs: Sequence[Job]) -> Iterator[list[Topic]]:
        connection.begin()
        yield connection.topics
        if self._writes:
            self._number += 1
            self.unsure = jobs
            if not connection.commit(self._writer, connection.number, self._number):
                raise _ConflictError
