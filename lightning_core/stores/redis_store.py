"""The store in a Redis server: many machines may share it.

What a method has returned from survives the death of every client at any moment, and that of the server if
it is set to `appendonly yes` and `appendfsync always`. A third connection hears of what other users did, once
somebody waits for it.

A transaction reads, the rules that all stores share decide in Python, and one script writes all of it, if
what was read is still so; if not, the transaction begins again. Each writer has a key with the number of its
last transaction, and of its connection: a new connection finds out there whether the last transaction was
committed, and one that comes late on an older connection is refused.

The scripts run inside the server, each as one atomic step. They choose and they write; what a rollout is
after a change is worked out in Python, from what was read. All use commands of Redis 6.2 and before.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import MappingProxyType

from lightning_core.errors import ConfigError
from lightning_core.records.types import Rollout
from lightning_core.stores import queue, rules
from lightning_core.stores.notifications import CANCELLED, Listener, Notifications, Topic
from lightning_core.stores.rows import CALLS
from lightning_core.stores.table_store import TableStore
from lightning_core.stores.workers import Driver, Job, Operation, StoreWorker

try:
    import redis
except ImportError as error:
    raise ConfigError(
        "a store at redis:// needs the driver of Redis: pip install 'agent-lightning-core[redis]'"
    ) from error

from lightning_core.stores.redis_connection import LOST, Connection, RedisLink, may_pass, read_url
from lightning_core.stores.redis_transaction import RedisConnection, parts_of, place_of

log = logging.getLogger(__name__)
MOST_CHANGED = 5000
"""So many rollouts are changed in one step of the server, which does nothing else meanwhile."""
LOOK_SECONDS = 30.0
"""How often one who waits looks for himself, should a message ever be missed."""
ALIVE_SECONDS = 30.0
"""After so long a silence the server is asked whether it is there."""

READ = """
local prefix, queue, limit = ARGV[1], ARGV[2], ARGV[3]
local rows = {}
local function add(id)
  local state = redis.call('HMGET', prefix .. 'rollout:' .. id, 'r', 's', 'a', 'j', 'w', 'v')
  if state[1] then rows[#rows + 1] = {id, state, redis.call('GET', prefix .. 'body:' .. id)} end
end
for at = 4, #ARGV do add(ARGV[at]) end
if queue ~= '' then
  local clock = redis.call('TIME')
  local now = clock[1] + clock[2] / 1000000
  local late = redis.call('ZRANGEBYSCORE', prefix .. 'leases', '-inf', now, 'LIMIT', 0, 500)
  for _, id in ipairs(late) do add(id) end
  if #late > 0 then return {1, rows} end
  local first = redis.call('ZRANGE', prefix .. queue, 0, limit - 1)
  for _, member in ipairs(first) do add(string.sub(member, 17)) end
end
return {0, rows}
"""
"""The rollouts with these ids. Or those whose leases have run out; if there is none, the first of a queue.
Of each: its id; run, status, attempts, what else changes, worker, version; and its body."""

COMMIT = """
local prefix, writer, connection, number, checks = unpack(ARGV, 1, 5)
if writer ~= '' and redis.call('HGET', prefix .. writer, 'c') ~= connection then return 'fenced' end
local at = 6
for _ = 1, checks do
  if (redis.call('HGET', prefix .. ARGV[at], ARGV[at + 1]) or '') ~= ARGV[at + 2] then return 'changed' end
  at = at + 3
end
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1000000
local places = tonumber(redis.call('GET', prefix .. 'places') or '0')
local own = {}
local function place()
  places = places + 1
  return string.format('%016.0f', places)
end
local function list(kind, run)
  return prefix .. 'of:' .. kind .. ':' .. run
end
function own.put(id, status, attempts, changing, reward, worker, seconds)
  local key, leases = prefix .. 'rollout:' .. id, prefix .. 'leases'
  local run, before, holder, arrived, priority = unpack(redis.call('HMGET', key, 'r', 's', 'w', 'n', 'p'))
  local queues = {prefix .. 'queue', prefix .. 'queue:' .. run}
  if before == 'running' then
    redis.call('ZREM', leases, id)
    redis.call('SREM', prefix .. 'held:' .. holder, id)
  elseif before == 'queued' then
    for _, queue in ipairs(queues) do redis.call('ZREM', queue, arrived .. id) end
  end
  if before ~= status then
    redis.call('ZREM', list('status:' .. before, run), id)
    redis.call('ZADD', list('status:' .. status, run), arrived, id)
  end
  if worker ~= '' then
    redis.call('ZADD', leases, string.format('%.6f', now + seconds), id)
    redis.call('SADD', prefix .. 'held:' .. worker, id)
  elseif status == 'queued' then
    for _, queue in ipairs(queues) do redis.call('ZADD', queue, priority, arrived .. id) end
  end
  if reward ~= '' then redis.call('ZADD', list('reward', run), reward, arrived .. id) end
  redis.call('HSET', key, 's', status, 'a', attempts, 'j', changing, 'w', worker)
  redis.call('HINCRBY', key, 'v', 1)
end
function own.new(id, run, priority, step, split, body, ...)
  local arrived = place()
  redis.call('HSET', prefix .. 'rollout:' .. id, 'r', run, 's', '', 'w', '', 'n', arrived, 'p', priority,
             't', step, 'l', split)
  redis.call('SET', prefix .. 'body:' .. id, body)
  for _, kind in ipairs({'run', 'step:' .. step, 'split:' .. split}) do
    redis.call('ZADD', list(kind, run), arrived, id)
  end
  own.put(id, ...)
end
function own.touch(id)
  redis.call('HINCRBY', prefix .. 'rollout:' .. id, 'v', 1)
end
function own.add(key, field, value)
  redis.call('HSET', prefix .. key, field, place() .. ':' .. value)
end
function own.remove(key, field)
  redis.call('HDEL', prefix .. key, field)
end
function own.tell(channel, name)
  redis.call('PUBLISH', channel, name)
end
while at <= #ARGV do
  local last = at + 1 + ARGV[at + 1]
  own[ARGV[at]](unpack(ARGV, at + 2, last))
  at = last + 1
end
redis.call('SET', prefix .. 'places', string.format('%.0f', places))
if writer ~= '' then redis.call('HSET', prefix .. writer, 'n', number) end
return 'written'
"""
"""Carries out a transaction, whole or not at all: prefix, writer, number of its connection, number of the
transaction; checks, (key, field, value)...; (change, words, word...)... It is refused if the writer has
another connection by now, or if a field holds another value than it did when it was read."""

LAST = """
local prefix, kind = ARGV[1], ARGV[2]
local found = {}
for at = 3, #ARGV do
  local attempt = redis.call('HGET', prefix .. 'rollout:' .. ARGV[at], 'a') or '0'
  found[#found + 1] = redis.call('HVALS', prefix .. kind .. ':' .. ARGV[at] .. ':' .. attempt)
end
return found
"""
"""Reads one kind of record of the last attempt of each rollout."""

SCRIPTS: Mapping[str, str] = MappingProxyType({"read": READ, "commit": COMMIT, "last": LAST})


class RedisStore(TableStore):
    """`redis://[user:password@]host[:port][/database][?prefix=...]`, or `rediss://` for TLS."""

    def __init__(self, url: str, *, server_timeout: float = 60.0) -> None:
        """`server_timeout`: for how many seconds operations wait for a server that is gone."""
        self.url = read_url(url)
        self.name = self.url.shown
        self._link = RedisLink(self.url, SCRIPTS)
        notifications = Notifications()
        writer, reader = (RedisDriver(self._link, notifications, writes=writes) for writes in (True, False))
        super().__init__(
            StoreWorker(writer, server_timeout=server_timeout),
            StoreWorker(reader, server_timeout=server_timeout),
            notifications,
            look_seconds=LOOK_SECONDS,
            listener=RedisListener(self._link, notifications),
        )
        self._server_timeout = server_timeout

    async def __aenter__(self) -> RedisStore:
        await asyncio.to_thread(self._link.check, self._server_timeout)
        await self._writer.open(connect=False)
        await self._reader.open(connect=False)
        return self

    async def enqueue(self, rollouts: Sequence[Rollout]) -> int:
        rules.check_ids(*rollouts)
        enqueue = super().enqueue
        return sum([await enqueue(part) for part in parts_of(rollouts, MOST_CHANGED)])

    async def cancel(self, rollout_ids: Sequence[str]) -> int:
        cancel = super().cancel
        return sum([await cancel(part) for part in parts_of(rollout_ids, MOST_CHANGED)])


class _ConflictError(Exception):
    """A record was changed between reading and writing."""


class RedisDriver(Driver[RedisConnection]):
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
        """Number of the last transaction."""
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


class RedisListener(Listener):
    """Hears by publish and subscribe."""

    def __init__(self, link: RedisLink, notifications: Notifications) -> None:
        super().__init__(f"notifications of {link.url.shown}", notifications)
        self._link, self._channels = link, link.url.channels
        self._connection: Connection | None = None
        """Set while it can be written to."""

    def stir(self) -> None:
        if self._connection is None:
            return
        try:
            if self.closing.is_set():
                self._connection.send_command("PING")  # its answer ends the reading
            else:
                self._subscribe(self._connection)
        except Exception:  # the driver has hung up: the thread notices, and subscribes again
            log.debug("could not reach the %s", self.name, exc_info=True)
            self._connection = None

    def _subscribe(self, connection: Connection) -> None:
        connection.send_command("SUBSCRIBE", *(self._channels + kind for kind in self.wanted))

    def hear(self) -> None:
        connection = self._link.connect()
        try:
            with self.lock:
                self._subscribe(connection)
                self._connection = connection
            self._read(connection)
        finally:
            with self.lock:
                self._connection = None
            connection.disconnect()

    def _read(self, connection: Connection) -> None:
        silent = False
        while self._connection is connection and not self.closing.is_set():
            if connection.can_read(ALIVE_SECONDS):
                silent = False
                self._take(connection.read_response())
            elif silent:
                return
            else:
                silent = True
                with self.lock:
                    connection.send_command("PING")

    def _take(self, message: list[bytes] | bytes) -> None:
        if isinstance(message, bytes):  # so a PING is answered where nothing is subscribed to
            raise redis.ConnectionError("the driver has connected again by itself, without the subscriptions")
        kind, topic = message[0], message[1].decode().removeprefix(self._channels)
        if kind == b"message":
            self.notifications.tell([(topic, message[2].decode())])
        elif kind == b"subscribe" and topic != CANCELLED:
            self.notifications.wake(topic)
