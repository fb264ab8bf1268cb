"""The store in a PostgreSQL database: many machines may share it.

What a method has returned from survives the death of every client and of the server. The operations
are carried out on a few connections that own a thread each (`postgres_lines`); another one hears of
what others do (`postgres_news`), so nobody polls.
"""

from __future__ import annotations

import math
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import LiteralString, TypeVar

from lightning_core.errors import ConfigError, NotFoundError
from lightning_core.stores import rows, rules
from lightning_core.stores.run_records import RunRecords, Table
from lightning_core.stores.waiting import QUEUE, Bells, Waiters, cancelled_of
from lightning_core.types import (
    Attempt,
    Call,
    Event,
    Reward,
    Rollout,
    RolloutCount,
    Status,
)

try:
    import psycopg
    from psycopg import Connection
except ImportError as error:
    raise ConfigError(
        "a postgresql:// store needs its driver: pip install 'agent-lightning-core[postgres]'"
    ) from error

from lightning_core.stores import postgres_news as news
from lightning_core.stores import postgres_queue as queue
from lightning_core.stores import postgres_statements as statements
from lightning_core.stores.postgres_attempts import finishing, keeping, leasing, recording
from lightning_core.stores.postgres_lines import PostgresLines
from lightning_core.stores.postgres_schema import connect, opened
from lightning_core.stores.postgres_statements import transaction
from lightning_core.stores.postgres_url import in_words, place_of

T = TypeVar("T")

LOOK_SECONDS = 30.0
"""How often one who waits looks for himself, should a notice ever be missed."""
FEW = 100
"""So many rows may be written beside what others do; more would hold those up."""
OF_LAST_ATTEMPT = (
    " AS item JOIN rollouts ON rollouts.id = item.rollout_id AND rollouts.attempts = item.attempt"
    " WHERE rollouts.id = ANY(%b::text[]) ORDER BY"
)
ADD_ROLLOUT = statements.insert("rollouts", rows.ROLLOUT, otherwise="ON CONFLICT (id) DO NOTHING")
PUT_EVENT = statements.upsert("events", rows.EVENT, "rollout_id, attempt, kind, id", "seq")
ADD_REWARD = statements.insert(
    "rewards",
    f"{rows.REWARD}, sent",
    otherwise="ON CONFLICT (rollout_id, attempt, id) WHERE id IS NOT NULL DO NOTHING",
)


class PostgresStore(RunRecords):
    """`postgresql://user:password@host:port/database`, with `?schema=…` for another place in it."""

    arrival = "seq"

    def __init__(self, url: str, *, connections: int = 4, retry_seconds: float = 60.0) -> None:
        """`connections`: how many operations may be carried out at once; they are made when needed.
        `retry_seconds`: how long an operation waits for a server that is gone to come back."""
        self._place = place = place_of(url)
        self._lines = PostgresLines(
            place, lambda: opened(place), most=connections, retry_seconds=retry_seconds
        )
        self._waiters = Waiters()
        self._bells = Bells()
        self._channels = news.Channels(place.schema)
        self._news = news.PostgresNews(lambda: connect(place), self._channels, self._waiters, self._bells)

    async def __aenter__(self) -> PostgresStore:
        await self._lines.open()
        try:
            await self._news.open()
        except psycopg.Error as error:
            await self._lines.close()
            raise in_words(error, self._place) from error
        except BaseException:
            await self._lines.close()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._news.close()
        await self._lines.close()

    # the queue of rollouts ----------------------------------------------------------------
    async def enqueue(self, rollouts: Sequence[Rollout]) -> int:
        rules.check_ids(*rollouts)
        return await self._write(ADD_ROLLOUT, rows.rollout_row, rollouts, self._channels.queued())

    async def lease(
        self, worker: str, limit: int, seconds: float, *, run_id: str | None = None
    ) -> list[Attempt]:
        rules.check_id("the worker", worker)
        if limit <= 0:
            return []
        return await self._lines.run(leasing(worker, limit, seconds, run_id, self._channels))

    async def wait_queued(self, timeout: float, *, run_id: str | None = None) -> bool:
        deadline = time.monotonic() + timeout
        with self._bells.listening(QUEUE) as bell:
            self._news.listen(news.QUEUED)
            while True:
                found, expiry = await self._lines.run(lambda connection: queue.work(connection, run_id))
                left = deadline - time.monotonic()
                if found or left <= 0:
                    return found
                await bell.sleep(min(left, LOOK_SECONDS, math.inf if expiry is None else expiry))

    async def heartbeat(self, attempts: Sequence[Attempt], seconds: float) -> list[Attempt]:
        return await self._lines.run(keeping(attempts, seconds)) if attempts else []

    async def finish(
        self, attempt: Attempt, *, reward: float | None = None, error: str | None = None
    ) -> Rollout:
        return await self._lines.run(finishing(attempt, reward, error, self._channels))

    async def cancel(self, rollout_ids: Sequence[str]) -> int:
        def operation(connection: Connection) -> int:
            now = time.time()
            with transaction(connection):
                found = queue.lock(connection, "id = ANY(%b::text[])", list(rollout_ids))
                unfinished = [(rollout, worker) for rollout, worker in found if not rollout.status.finished]
                workers = dict.fromkeys(worker for _, worker in unfinished if worker is not None)
                ended = [rules.cancelled(rollout, now) for rollout, _ in unfinished]
                finished = self._channels.finished(rollout.id for rollout in ended)
                queue.save(connection, ended, finished + self._channels.cancelled(workers))
            return len(ended)

        return await self._lines.run(operation) if rollout_ids else 0

    async def wait_cancelled(self, worker: str, timeout: float) -> bool:
        with self._bells.listening(cancelled_of(worker)) as bell:
            self._news.listen(news.CANCELLED)
            return await bell.sleep(timeout)

    async def release(self, attempts: Sequence[Attempt]) -> None:
        by_id: defaultdict[str, list[Attempt]] = defaultdict(list)
        for attempt in attempts:
            by_id[attempt.rollout.id].append(attempt)

        def held(rollout: Rollout) -> bool:
            return any(rules.holds(attempt, rollout) for attempt in by_id[rollout.id])

        await self._release("id = ANY(%b::text[])", list(by_id), held)

    async def reclaim(self, worker: str) -> int:
        return await self._release("status = 'running' AND worker = %b", worker, lambda _: True)

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
        return await self._lines.run(
            lambda connection: queue.page(connection, run_id, wanted, after, limit, newest)
        )

    async def count_rollouts(self, run_id: str) -> list[RolloutCount]:
        return await self._select(rows.to_count, rows.COUNT.format("?"), run_id)

    async def get_rollouts(self, rollout_ids: Sequence[str]) -> list[Rollout]:
        found = await self._lines.run(lambda connection: queue.find(connection, rollout_ids))
        return rules.all_found(rollout_ids, found)

    async def wait_finished(self, rollout_ids: Sequence[str], timeout: float | None = None) -> list[Rollout]:
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        pending = set(rollout_ids)
        if pending:
            self._news.listen(news.FINISHED)
        while pending:
            with self._waiters.waiting(pending) as waiter:  # anew, as a notice may have been wrong
                unfinished = await self._unfinished(pending)
                self._waiters.finished(pending - unfinished)
                pending, left = unfinished, deadline - time.monotonic()
                if not pending or left <= 0:
                    break
                await waiter.sleep(min(left, LOOK_SECONDS))
        found = await self._lines.run(lambda connection: queue.find(connection, rollout_ids))
        return [found[i] for i in rollout_ids if found[i].status.finished]

    # what happened in them ----------------------------------------------------------------
    async def add_call(self, call: Call, *, running: bool = False) -> None:
        rules.check_ids(call)
        await self._lines.run(recording(call, running=running))

    async def add_rewards(self, rewards: Sequence[Reward], *, running: bool = False) -> None:
        rules.check_ids(*rewards)
        for reward in rewards:
            rules.check_reward(reward.rollout_id, reward.value)
        name, tries = secrets.token_hex(8), 0

        def operation(connection: Connection) -> None:
            nonlocal tries
            tries += 1
            if tries > 1 and queue.was_sent(connection, rewards, name):
                return
            with transaction(connection):
                rollouts, known = queue.state(connection, rewards) if running else ({}, set())
                new = rules.new_rewards(rewards, known)
                for reward in new if running else ():
                    rules.check_running(reward, rollouts.get(reward.rollout_id))
                statements.add(connection, ADD_REWARD, [(*rows.reward_row(one), name) for one in new])

        if rewards:
            await self._lines.run(operation)

    async def add_events(self, events: Sequence[Event]) -> None:
        await self._write(PUT_EVENT, rows.event_row, events)

    async def get_calls(self, rollout_ids: Iterable[str]) -> dict[str, list[Call]]:
        calls: dict[str, list[Call]] = {rollout_id: [] for rollout_id in rollout_ids}
        query = f"SELECT {rows.of('item', rows.CALL)} FROM calls{OF_LAST_ATTEMPT} item.started_at, item.seq"
        for call in await self._select(rows.to_call, query, list(calls)):
            calls[str(call.rollout_id)].append(call)
        return calls

    async def get_rewards(self, rollout_ids: Iterable[str]) -> dict[str, list[Reward]]:
        rewards: dict[str, list[Reward]] = {rollout_id: [] for rollout_id in rollout_ids}
        query = f"SELECT {rows.of('item', rows.REWARD)} FROM rewards{OF_LAST_ATTEMPT} item.seq"
        for reward in await self._select(rows.to_reward, query, list(rewards)):
            rewards[reward.rollout_id].append(reward)
        return rewards

    async def get_events(self, rollout_ids: Iterable[str]) -> dict[str, list[Event]]:
        events: dict[str, list[Event]] = {rollout_id: [] for rollout_id in rollout_ids}
        columns = rows.of("item", rows.EVENT)
        query = f"SELECT {columns} FROM events{OF_LAST_ATTEMPT} item.started_at, item.seq"
        for event in await self._select(rows.to_event, query, list(events)):
            events[event.rollout_id].append(event)
        return events

    # ways to the lines --------------------------------------------------------------------
    async def _write(
        self,
        statement: str,
        to_row: Callable[[T], rows.Row],
        values: Sequence[T],
        notices: Sequence[statements.Notice] = (),
    ) -> int:
        """Run the statement for each value and tell of it; how many rows it changed."""
        if not values:
            return 0
        operation = statements.writing(statement, lambda: list(map(to_row, values)), notices)
        return await self._lines.run(operation if len(values) <= FEW else operation.alone)

    async def _put(self, table: Table, row: rows.Row) -> None:
        await self._write(statements.upsert(table.name, table.columns, table.key), tuple, [row])

    async def _add(self, table: Table, new: Sequence[rows.Row]) -> int:
        otherwise = f"ON CONFLICT ({table.key}) DO NOTHING"
        return await self._write(
            statements.insert(table.name, table.columns, otherwise=otherwise), tuple, new
        )

    async def _remove(self, table: Table, key: rows.Row) -> None:
        where = " AND ".join(f"{column} = %b" for column in table.key.split(", "))
        await self._write(f"DELETE FROM {table.name} WHERE {where}", tuple, [key])

    async def _select(self, to_value: Callable[[rows.Row], T], query: str, *arguments: object) -> list[T]:
        asked = query.replace("?", "%b")
        return await self._lines.run(
            lambda connection: [to_value(row) for row in statements.select(connection, asked, *arguments)]
        )

    async def _release(
        self, where: LiteralString, value: object, given_back: Callable[[Rollout], bool]
    ) -> int:
        def operation(connection: Connection) -> int:
            with transaction(connection):
                found = [rollout for rollout, _ in queue.lock(connection, where, value)]
                released = [rules.released(rollout) for rollout in found if given_back(rollout)]
                queue.save(connection, released, self._channels.queued() if released else [])
            return len(released)

        return await self._lines.run(operation) if value else 0

    async def _unfinished(self, rollout_ids: Collection[str]) -> set[str]:
        statuses = await self._lines.run(lambda connection: queue.statuses(connection, rollout_ids))
        unknown = set(rollout_ids) - statuses.keys()
        if unknown:
            raise NotFoundError(
                f"no rollout {min(unknown)!r} in {self._place.name!r}: enqueue it before waiting for it"
            )
        return {rollout_id for rollout_id, status in statuses.items() if not status.finished}
