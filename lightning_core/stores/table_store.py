"""A store in tables: every operation, written once over a small driver for each database.

A driver makes connections (`queue.Transaction`), begins and commits transactions, and tells other users of
the store what happened. One thread writes and another reads, each on its connection, so reading a big batch
never holds up the recording of a call. What is written at the same time shares a transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Self, TypeVar

from lightning_core.errors import LightningError, NotFoundError, StoreError
from lightning_core.records.types import (
    Alert,
    Attempt,
    Call,
    Credited,
    Event,
    Member,
    Metrics,
    Order,
    Record,
    ResourceVersion,
    Reward,
    Role,
    Rollout,
    RolloutCount,
    Run,
    Status,
)
from lightning_core.stores import queue, rules
from lightning_core.stores.notifications import (
    CANCELLED,
    FINISHED,
    QUEUE,
    QUEUED,
    Listener,
    Notifications,
    Topic,
    cancelled_of,
    finished_of,
)
from lightning_core.stores.packing import plain
from lightning_core.stores.queue import Transaction
from lightning_core.stores.rows import (
    ALERTS,
    CALLS,
    CREDITED,
    EVENTS,
    MEMBERS,
    METRICS,
    RESOURCES,
    REWARDS,
    RUNS,
    Table,
)
from lightning_core.stores.workers import Direct, Operation, StoreWorker

C = TypeVar("C", bound=Transaction)
T = TypeVar("T")
R = TypeVar("R", bound=Record)


class TableStore:
    """The `Store` that all databases have in common."""

    name: str
    """For messages."""

    def __init__(
        self,
        writer: StoreWorker[C] | Direct[C],
        reader: StoreWorker[C] | Direct[C],
        notifications: Notifications,
        *,
        look_seconds: float,
        listener: Listener | None = None,
    ) -> None:
        """`look_seconds`: how often those who wait look for themselves. `listener`: hears what other users of
        the store tell."""
        self._writer, self._reader, self._notifications = writer, reader, notifications
        self._look_seconds, self._listener = look_seconds, listener

    async def __aenter__(self) -> Self:
        await self._writer.open()
        try:
            await self._reader.open()
        except BaseException:
            await self._writer.close()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._listener is not None:
            await self._listener.close()
        await self._writer.close()
        await self._reader.close()

    def _listen(self, kind: str) -> None:
        if self._listener is not None:
            self._listener.listen(kind)

    async def _ends(self) -> int | None:
        """A number that is another one once rollouts have finished, if that is cheaper than to look."""
        return None

    # runs ---------------------------------------------------------------------------------
    async def put_run(self, run: Run) -> None:
        await self._put(RUNS, run)

    async def find_run(self, run_id: str) -> Run | None:
        runs = await self._read(lambda of: of.select(RUNS, id=run_id))
        return runs[0] if runs else None

    async def list_runs(self) -> list[Run]:
        runs = await self._read(lambda of: of.select(RUNS))
        return sorted(runs, key=lambda run: run.created_at, reverse=True)

    # the queue of rollouts ----------------------------------------------------------------
    async def enqueue(self, rollouts: Sequence[Rollout]) -> int:
        rules.check_ids(*rollouts)
        if not rollouts:
            return 0
        added: int = await self._writer.run(Operation(lambda to: to.enqueue(rollouts), new=rollouts))
        return added

    async def lease(
        self, worker: str, limit: int, seconds: float, *, run_id: str | None = None
    ) -> list[Attempt]:
        rules.check_id("the worker", worker)
        if limit <= 0:
            return []
        return await self._write(
            lambda to: queue.lease(to, worker, limit, seconds, run_id), lease=(limit, run_id)
        )

    async def wait_queued(self, timeout: float, *, run_id: str | None = None) -> bool:
        async def look(pending: set[Topic]) -> tuple[set[Topic], float]:
            found, expiry = await self._read(lambda of: of.work(run_id))
            again = self._look_seconds if expiry is None else min(expiry, self._look_seconds)
            return (set() if found else pending), again

        self._listen(QUEUED)
        return not await self._notifications.wait([QUEUE], timeout, look)

    async def heartbeat(self, attempts: Sequence[Attempt], seconds: float) -> list[Attempt]:
        if not attempts:
            return []
        ids = [attempt.rollout.id for attempt in attempts]
        return await self._write(lambda to: queue.heartbeat(to, attempts, seconds), ids)

    async def finish(
        self, attempt: Attempt, *, reward: float | None = None, error: str | None = None
    ) -> Rollout:
        ids, said = [attempt.rollout.id], plain(error)
        return await self._write(lambda to: queue.finish(to, attempt, reward, said), ids)

    async def cancel(self, rollout_ids: Sequence[str]) -> int:
        return await self._write(lambda to: queue.cancel(to, rollout_ids), rollout_ids) if rollout_ids else 0

    async def wait_cancelled(self, worker: str, timeout: float) -> bool:
        with self._notifications.waiting([cancelled_of(worker)]) as waiter:
            self._listen(CANCELLED)
            return await waiter.sleep(timeout)

    async def release(self, attempts: Sequence[Attempt]) -> None:
        if attempts:
            await self._write(lambda to: queue.release(to, attempts), [one.rollout.id for one in attempts])

    async def reclaim(self, worker: str, *, run_id: str | None = None) -> int:
        return await self._write(lambda to: queue.reclaim(to, worker, run_id))

    async def find_rollouts(
        self,
        run_id: str,
        *,
        step: int | None = None,
        split: str | None = None,
        status: Status | None = None,
        after: str | None = None,
        before: str | None = None,
        limit: int | None = None,
        newest: bool = False,
        order: Order = "enqueued",
    ) -> list[Rollout]:
        wanted = rules.wanted(step, status, split)
        page = queue.Page(run_id, wanted, after, before, limit, newest, order)
        return await self._read(lambda of: of.page(page))

    async def count_rollouts(self, run_id: str) -> list[RolloutCount]:
        return await self._read(lambda of: of.count(run_id))

    async def get_rollouts(self, rollout_ids: Sequence[str]) -> list[Rollout]:
        found = await self._read(lambda of: of.find(rollout_ids))
        return rules.all_found(rollout_ids, found)

    async def wait_finished(self, rollout_ids: Sequence[str], timeout: float | None = None) -> list[Rollout]:
        seen: int | None = None

        async def look(pending: set[Topic]) -> tuple[set[Topic], float]:
            nonlocal seen
            before, seen = seen, await self._ends()
            if seen is None or seen != before:
                pending = set(map(finished_of, await self._unfinished([name for _, name in pending])))
            return pending, self._look_seconds

        if rollout_ids:
            self._listen(FINISHED)
        await self._notifications.wait(map(finished_of, rollout_ids), timeout, look)
        found = await self._read(lambda of: of.find(rollout_ids))
        return [found[i] for i in rollout_ids if found[i].status.finished]

    # what happened in them ----------------------------------------------------------------
    async def add_call(self, call: Call, *, running: bool = False) -> None:
        rules.check_ids(call)
        await self._writer.run(Operation(lambda to: to.put_call(call, running=running), call=(call, running)))

    async def add_rewards(self, rewards: Sequence[Reward], *, running: bool = False) -> None:
        rules.check_ids(*rewards)
        for reward in rewards:
            rules.check_reward(reward.rollout_id, reward.value)
        if rewards:
            ids = () if running else queue.finals(rewards)
            await self._write(lambda to: queue.add_rewards(to, rewards, running=running), ids)

    async def add_events(self, events: Sequence[Event]) -> None:
        if events:  # thousands, perhaps: they become rows on the writer's thread, not on the event loop
            await self._write(lambda to: to.upsert(EVENTS, events))

    async def get_calls(self, rollout_ids: Iterable[str]) -> dict[str, list[Call]]:
        found = await self._of_last_attempts(CALLS, rollout_ids)
        return {name: sorted(some, key=lambda call: call.started_at) for name, some in found.items()}

    async def get_rewards(self, rollout_ids: Iterable[str]) -> dict[str, list[Reward]]:
        return await self._of_last_attempts(REWARDS, rollout_ids)

    async def get_events(self, rollout_ids: Iterable[str]) -> dict[str, list[Event]]:
        found = await self._of_last_attempts(EVENTS, rollout_ids)
        return {name: sorted(some, key=lambda event: event.started_at) for name, some in found.items()}

    async def add_credited(self, credited: Sequence[Credited]) -> None:
        rules.check_ids(*credited)
        if credited:
            await self._write(lambda to: to.upsert(CREDITED, credited))

    async def get_credited(self, rollout_ids: Iterable[str]) -> dict[str, list[Credited]]:
        found = await self._of_last_attempts(CREDITED, rollout_ids)
        return {name: sorted(some, key=lambda one: (one.call_id, one.choice)) for name, some in found.items()}

    # what is learnt -----------------------------------------------------------------------
    async def put_resource(self, version: ResourceVersion) -> None:
        await self._put(RESOURCES, version)

    async def list_resources(self, run_id: str, name: str = "policy") -> list[ResourceVersion]:
        found = await self._read(lambda of: of.select(RESOURCES, run_id=run_id, name=name))
        return sorted(found, key=lambda one: one.version)

    async def put_metrics(self, metrics: Metrics) -> None:
        await self._put(METRICS, metrics)

    async def list_metrics(
        self, run_id: str, *, since: int | None = None, limit: int | None = None
    ) -> list[Metrics]:
        return await self._read(lambda of: of.metrics(run_id, since, limit))

    # who plays in a run, and what is wrong with it ----------------------------------------
    async def put_member(self, member: Member) -> None:
        await self._put(MEMBERS, member)

    async def remove_member(self, run_id: str, role: Role, name: str) -> None:
        await self._write(lambda to: to.remove(MEMBERS, run_id, role, name))

    async def list_members(self, run_id: str) -> list[Member]:
        found = await self._read(lambda of: of.select(MEMBERS, run_id=run_id))
        return sorted(found, key=lambda one: (one.role, one.name))

    async def add_alerts(self, alerts: Sequence[Alert]) -> int:
        rules.check_ids(*alerts)
        return int(await self._writer.run(Operation(lambda to: to.add(ALERTS, alerts)))) if alerts else 0

    async def list_alerts(self, run_id: str) -> list[Alert]:
        return await self._read(lambda of: of.select(ALERTS, run_id=run_id))

    # ways to the threads ------------------------------------------------------------------
    async def _write(
        self,
        operation: Callable[[Transaction], T],
        ids: Sequence[str] = (),
        lease: tuple[int, str | None] | None = None,
    ) -> T:
        result: T = await self._writer.run(Operation(operation, ids, lease))
        return result

    async def _read(self, operation: Callable[[Transaction], T]) -> T:
        result: T = await self._asked(Operation(operation))
        return result

    async def _asked(self, operation: Operation) -> Any:
        """The result of a reading operation. Raises StoreError for a record that no store wrote."""
        try:
            return await self._reader.run(operation)
        except LightningError:
            raise
        except (ValueError, TypeError, KeyError) as error:
            said = " ".join(str(error).split())
            raise StoreError(
                f"the store {self.name!r} holds a record that can't be read "
                f"({type(error).__name__}: {said}). "
                "It is damaged, or another program has written to it"
            ) from error

    async def _put(self, table: Table[R], record: R) -> None:
        rules.check_ids(record)
        await self._write(lambda to: to.upsert(table, [record]))

    async def _of_last_attempts(self, table: Table[R], rollout_ids: Iterable[str]) -> dict[str, list[R]]:
        ids = list(dict.fromkeys(rollout_ids))
        operation = Operation(lambda of: of.of_last_attempts(table, ids), last=(table, ids))
        found: dict[str, list[R]] = await self._asked(operation)
        return found

    async def _unfinished(self, rollout_ids: Collection[str]) -> set[str]:
        statuses = await self._read(lambda of: of.statuses(rollout_ids))
        unknown = set(rollout_ids) - statuses.keys()
        if unknown:
            raise NotFoundError(
                f"no rollout {min(unknown)!r} in {self.name!r}: enqueue it before waiting for it"
            )
        return {rollout_id for rollout_id, status in statuses.items() if not status.finished}
