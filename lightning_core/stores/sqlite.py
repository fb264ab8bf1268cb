"""The store in one SQLite file: the default. Several processes of one machine may share it.

What a method has returned from survives `kill -9` of every process (not a power loss, see
`sqlite_file`). Writes go through one thread and reads through another, each with its connection, so
reading a big batch never holds up the recording of a call.
"""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TypeVar

from lightning_core.errors import NotFoundError
from lightning_core.stores import rows, rules, sqlite_queue
from lightning_core.stores.run_records import RunRecords, Table
from lightning_core.stores.sqlite_file import path_of
from lightning_core.stores.sqlite_thread import SqliteThread
from lightning_core.stores.waiting import QUEUE, Bells, Waiter, Waiters, cancelled_of
from lightning_core.types import (
    Attempt,
    Call,
    Event,
    Reward,
    Rollout,
    RolloutCount,
    Status,
)

T = TypeVar("T")

OF_LAST_ATTEMPT = (
    " AS item JOIN rollouts ON rollouts.id = item.rollout_id AND rollouts.attempts = item.attempt"
    " WHERE rollouts.id IN (SELECT value FROM json_each(?)) ORDER BY"
)


class SqliteStore(RunRecords):
    """`sqlite:///runs.db` (relative) or `sqlite:////data/runs.db` (absolute)."""

    arrival = "rowid"

    def __init__(self, url: str, *, busy_seconds: float = 30.0, poll_seconds: float = 0.25) -> None:
        """`busy_seconds`: how long to wait for another process that is writing. `poll_seconds`: how
        often `wait_finished` looks for what other processes finished; this one's wake it at once."""
        self.path = path_of(url)
        self._writer = SqliteThread(self.path, writes=True, busy_seconds=busy_seconds)
        self._reader = SqliteThread(self.path, writes=False, busy_seconds=busy_seconds)
        self._poll_seconds = poll_seconds
        self._waiters = Waiters()
        self._bells = Bells()

    async def __aenter__(self) -> SqliteStore:
        await self._writer.open()
        try:
            await self._reader.open()
        except BaseException:
            await self._writer.close()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._writer.close()
        await self._reader.close()

    # the queue of rollouts ----------------------------------------------------------------
    async def enqueue(self, rollouts: Sequence[Rollout]) -> int:
        rules.check_ids(*rollouts)
        statement = rows.insert("rollouts", rows.ROLLOUT, otherwise="OR IGNORE")
        added = await self._added(statement, [rows.rollout_row(rollout) for rollout in rollouts])
        self._bells.ring(QUEUE)
        return added

    async def lease(
        self, worker: str, limit: int, seconds: float, *, run_id: str | None = None
    ) -> list[Attempt]:
        rules.check_id("the worker", worker)
        if limit <= 0 or not await self._has_work(run_id):
            return []

        def operation(connection: sqlite3.Connection) -> tuple[list[Attempt], list[str]]:
            failed = sqlite_queue.expire(connection)
            started = [rules.started(rollout) for rollout in sqlite_queue.queued(connection, run_id, limit)]
            sqlite_queue.save(connection, started)
            until = sqlite_queue.hold(connection, started, seconds, worker)
            return [rows.attempt(rollout, worker, until) for rollout in started], failed

        attempts, failed = await self._writer.run(operation)
        self._waiters.finished(failed)
        return attempts

    async def wait_queued(self, timeout: float, *, run_id: str | None = None) -> bool:
        deadline = time.monotonic() + timeout
        with self._bells.listening(QUEUE) as bell:
            while not await self._has_work(run_id):
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                if await bell.sleep(min(left, self._poll_seconds)):
                    return True
        return True

    async def heartbeat(self, attempts: Sequence[Attempt], seconds: float) -> list[Attempt]:
        def operation(connection: sqlite3.Connection) -> list[Attempt]:
            held = sqlite_queue.held(connection, attempts)
            until = sqlite_queue.hold(connection, [rollout for _, rollout in held], seconds)
            return [rows.attempt(rollout, attempt.worker, until) for attempt, rollout in held]

        return await self._writer.run(operation) if attempts else []

    async def finish(
        self, attempt: Attempt, *, reward: float | None = None, error: str | None = None
    ) -> Rollout:
        def operation(connection: sqlite3.Connection) -> Rollout:
            now = time.time()
            before = sqlite_queue.find(connection, [attempt.rollout.id]).get(attempt.rollout.id)
            given = sqlite_queue.last_final(connection, attempt) if reward is None and error is None else None
            after = rules.finished(attempt, before, reward=reward, error=error, given=given, now=now)
            if after is not before:
                sqlite_queue.save(connection, [after])
                if reward is not None:
                    final = rules.final_reward(after, reward, now)
                    connection.execute(rows.insert("rewards", rows.REWARD), rows.reward_row(final))
            return after

        rollout = await self._writer.run(operation)
        if rollout.status.finished:
            self._waiters.finished([rollout.id])
        else:
            self._bells.ring(QUEUE)
        return rollout

    async def cancel(self, rollout_ids: Sequence[str]) -> int:
        def operation(connection: sqlite3.Connection) -> tuple[list[str], set[str]]:
            now = time.time()
            found = sqlite_queue.find(connection, rollout_ids).values()
            cancelled = [rules.cancelled(rollout, now) for rollout in found if not rollout.status.finished]
            ids = [rollout.id for rollout in cancelled]
            workers = sqlite_queue.workers(connection, ids)
            sqlite_queue.save(connection, cancelled)
            return ids, workers

        cancelled, workers = await self._writer.run(operation)
        self._waiters.finished(cancelled)
        for worker in workers:
            self._bells.ring(cancelled_of(worker))
        return len(cancelled)

    async def wait_cancelled(self, worker: str, timeout: float) -> bool:
        """Sees at once what this process cancels; other processes' cancellations show in heartbeats."""
        with self._bells.listening(cancelled_of(worker)) as bell:
            return await bell.sleep(timeout)

    async def release(self, attempts: Sequence[Attempt]) -> None:
        def operation(connection: sqlite3.Connection) -> None:
            sqlite_queue.save(
                connection,
                [rules.released(rollout) for _, rollout in sqlite_queue.held(connection, attempts)],
            )

        if attempts:
            await self._writer.run(operation)
            self._bells.ring(QUEUE)

    async def reclaim(self, worker: str) -> int:
        def operation(connection: sqlite3.Connection) -> int:
            found = sqlite_queue.held_by(connection, worker)
            sqlite_queue.save(connection, [rules.released(rollout) for rollout in found])
            return len(found)

        reclaimed = await self._writer.run(operation)
        self._bells.ring(QUEUE)
        return reclaimed

    async def find_rollouts(
        self,
        run_id: str,
        *,
        step: int | None = None,
        split: str | None = None,
        status: Status | None = None,
        after: str | None = None,
        limit: int | None = None,
        newest: bool = False,
    ) -> list[Rollout]:
        wanted = rules.wanted(step, status, split)
        return await self._reader.run(
            lambda connection: sqlite_queue.page(connection, run_id, wanted, after, limit, newest)
        )

    async def count_rollouts(self, run_id: str) -> list[RolloutCount]:
        return await self._select(rows.to_count, rows.COUNT.format("?"), run_id)

    async def get_rollouts(self, rollout_ids: Sequence[str]) -> list[Rollout]:
        found = await self._reader.run(lambda connection: sqlite_queue.find(connection, rollout_ids))
        return rules.all_found(rollout_ids, found)

    async def wait_finished(self, rollout_ids: Sequence[str], timeout: float | None = None) -> list[Rollout]:
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        unfinished = set(rollout_ids)
        with self._waiters.waiting(rollout_ids) as waiter:
            while True:
                ends, unfinished = await self._unfinished(unfinished)
                self._waiters.finished(set(rollout_ids) - unfinished)
                if not unfinished or not await self._end(waiter, ends, deadline):
                    break
        found = await self._reader.run(lambda connection: sqlite_queue.find(connection, rollout_ids))
        return [found[i] for i in rollout_ids if found[i].status.finished]

    # what happened in them ----------------------------------------------------------------
    async def add_call(self, call: Call, *, running: bool = False) -> None:
        rules.check_ids(call)
        await self._writer.run(lambda connection: sqlite_queue.put_call(connection, call, running=running))

    async def add_rewards(self, rewards: Sequence[Reward], *, running: bool = False) -> None:
        rules.check_ids(*rewards)
        for reward in rewards:
            rules.check_reward(reward.rollout_id, reward.value)

        def operation(connection: sqlite3.Connection) -> None:
            new = rules.new_rewards(rewards, sqlite_queue.known_rewards(connection, rewards))
            if running:
                rollouts = sqlite_queue.find(connection, {reward.rollout_id for reward in new})
                for reward in new:
                    rules.check_running(reward, rollouts.get(reward.rollout_id))
            connection.executemany(rows.insert("rewards", rows.REWARD), map(rows.reward_row, new)).close()

        if rewards:
            await self._writer.run(operation)

    async def add_events(self, events: Sequence[Event]) -> None:
        await self._insert_all(
            rows.insert("events", rows.EVENT, otherwise="OR REPLACE"), rows.event_row, events
        )

    async def get_calls(self, rollout_ids: Iterable[str]) -> dict[str, list[Call]]:
        calls: dict[str, list[Call]] = {rollout_id: [] for rollout_id in rollout_ids}
        query = f"SELECT {rows.of('item', rows.CALL)} FROM calls{OF_LAST_ATTEMPT} item.started_at, item.rowid"
        for call in await self._select(rows.to_call, query, sqlite_queue.json_list(calls)):
            calls[str(call.rollout_id)].append(call)
        return calls

    async def get_rewards(self, rollout_ids: Iterable[str]) -> dict[str, list[Reward]]:
        rewards: dict[str, list[Reward]] = {rollout_id: [] for rollout_id in rollout_ids}
        query = f"SELECT {rows.of('item', rows.REWARD)} FROM rewards{OF_LAST_ATTEMPT} item.rowid"
        for reward in await self._select(rows.to_reward, query, sqlite_queue.json_list(rewards)):
            rewards[reward.rollout_id].append(reward)
        return rewards

    async def get_events(self, rollout_ids: Iterable[str]) -> dict[str, list[Event]]:
        events: dict[str, list[Event]] = {rollout_id: [] for rollout_id in rollout_ids}
        columns = rows.of("item", rows.EVENT)
        query = f"SELECT {columns} FROM events{OF_LAST_ATTEMPT} item.started_at, item.rowid"
        for event in await self._select(rows.to_event, query, sqlite_queue.json_list(events)):
            events[event.rollout_id].append(event)
        return events

    # ways to the threads ------------------------------------------------------------------
    async def _put(self, table: Table, row: rows.Row) -> None:
        await self._insert(table.name, table.columns, row, otherwise="OR REPLACE")

    async def _add(self, table: Table, new: Sequence[rows.Row]) -> int:
        return await self._added(rows.insert(table.name, table.columns, otherwise="OR IGNORE"), new)

    async def _remove(self, table: Table, key: rows.Row) -> None:
        where = " AND ".join(f"{column} = ?" for column in table.key.split(", "))
        statement = f"DELETE FROM {table.name} WHERE {where}"
        await self._writer.run(lambda connection: connection.execute(statement, key).close())

    async def _insert(self, table: str, columns: str, row: rows.Row, *, otherwise: str = "") -> None:
        statement = rows.insert(table, columns, otherwise=otherwise)
        await self._writer.run(lambda connection: connection.execute(statement, row).close())

    async def _added(self, statement: str, new: Sequence[rows.Row]) -> int:
        """How many of the rows an INSERT OR IGNORE put in."""

        def operation(connection: sqlite3.Connection) -> int:
            before = connection.total_changes
            connection.executemany(statement, new).close()
            return connection.total_changes - before

        return await self._writer.run(operation)

    async def _insert_all(self, statement: str, to_row: Callable[[T], rows.Row], values: Sequence[T]) -> None:
        if values:  # thousands, perhaps: they become rows on the writer's thread, not on the event loop
            await self._writer.run(
                lambda connection: connection.executemany(statement, map(to_row, values)).close()
            )

    async def _select(self, to_value: Callable[[rows.Row], T], query: str, *arguments: object) -> list[T]:
        return await self._reader.run(
            # all rows first: a value that fails would leave the statement open, and the reader in the past
            lambda connection: [to_value(row) for row in connection.execute(query, arguments).fetchall()]
        )

    async def _has_work(self, run_id: str | None) -> bool:
        return await self._reader.run(lambda connection: sqlite_queue.has_work(connection, run_id))

    async def _end(self, waiter: Waiter, ends: int, deadline: float) -> bool:
        """Whether the waiter was woken, or another process finished anything since `ends`, in time."""
        while (left := deadline - time.monotonic()) > 0:
            if await waiter.sleep(min(left, self._poll_seconds)):
                return True
            if await self._reader.run(sqlite_queue.ends) != ends:
                return True
        return False

    async def _unfinished(self, rollout_ids: Collection[str]) -> tuple[int, set[str]]:
        """The number of `ends` that was read before, and those of the rollouts that have not finished."""
        ends, statuses = await self._reader.run(
            lambda connection: (
                sqlite_queue.ends(connection),
                sqlite_queue.statuses(connection, rollout_ids),
            )
        )
        unknown = set(rollout_ids) - statuses.keys()
        if unknown:
            raise NotFoundError(
                f"no rollout {min(unknown)!r} in {str(self.path)!r}: enqueue it before waiting for it"
            )
        return ends, {rollout_id for rollout_id, status in statuses.items() if not status.finished}
