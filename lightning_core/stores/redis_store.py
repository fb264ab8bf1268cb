"""The store in a Redis server: many machines may share it.

What a method has returned from survives the death of every client at any moment, and that of the server if
it is set to `appendonly yes` and `appendfsync always`. It may be used from any thread and event loop: writes
go through one thread and reads through another, each with its connection, so reading a big batch never
holds up the recording of a call. A third hears of what other users did, once somebody waits for it.

When the server is gone, operations wait for it and are tried again. What the lost try may have done is
found and not done twice.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel

from lightning_core.errors import NotFoundError
from lightning_core.stores import redis_rows, rules
from lightning_core.stores.notifications import (
    CANCELLED,
    FINISHED,
    QUEUE,
    QUEUED,
    Notifications,
    Topic,
    cancelled_of,
    finished_of,
)
from lightning_core.stores.redis_connection import (
    Commands,
    Connection,
    Operation,
    RedisDriver,
    RedisLink,
    Steps,
    read_url,
)
from lightning_core.stores.redis_listener import RedisListener
from lightning_core.stores.redis_queue import (
    Change,
    Rollouts,
    Rule,
    firsts,
    queue_of,
    request_name,
    to_time,
)
from lightning_core.stores.redis_rows import Row
from lightning_core.stores.workers import Worker
from lightning_core.types import (
    Alert,
    Attempt,
    Call,
    Event,
    Member,
    Metrics,
    ResourceVersion,
    Reward,
    Role,
    Rollout,
    RolloutCount,
    Run,
    Status,
)

T = TypeVar("T", bound=BaseModel)
R = TypeVar("R")

AT_ONCE = 100
"""Of so many rollouts what happened is read in one step."""


class RedisStore:
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
        self._link = RedisLink(self.url, answer_seconds=answer_seconds)
        self._rollouts = Rollouts(self._link)
        self._key = self._rollouts.key
        self._writer = Worker(RedisDriver(self._link), server_timeout=server_timeout)
        self._reader = Worker(RedisDriver(self._link), server_timeout=server_timeout)
        self._notifications = Notifications()
        self._listener = RedisListener(self._link, self._notifications)
        self._server_timeout = server_timeout
        self._look_seconds = look_seconds

    async def __aenter__(self) -> RedisStore:
        await asyncio.to_thread(self._link.check, self._server_timeout)
        await self._writer.open(connect=False)
        await self._reader.open(connect=False)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._writer.close()
        await self._reader.close()
        await asyncio.to_thread(self._listener.close)

    # runs ---------------------------------------------------------------------------------
    async def put_run(self, run: Run) -> None:
        rules.check_ids(run)
        await self._write("HSET", self._key("runs"), run.id, redis_rows.dump(run))

    async def find_run(self, run_id: str) -> Run | None:
        found = await self._read("HGET", self._key("runs"), run_id)
        return None if found is None else redis_rows.load(Run, [found])[0]

    async def list_runs(self) -> list[Run]:
        runs = await self._values(Run, self._key("runs"))
        return sorted(runs, key=lambda run: run.created_at, reverse=True)

    # the queue of rollouts ----------------------------------------------------------------
    async def enqueue(self, rollouts: Sequence[Rollout]) -> int:
        rules.check_ids(*rollouts)
        request, first = request_name(), firsts(rollouts, lambda rollout: rollout.id)
        return await self._run(self._writer, lambda tries: self._rollouts.enqueue(first, request))

    async def lease(
        self, worker: str, limit: int, seconds: float, *, run_id: str | None = None
    ) -> list[Attempt]:
        rules.check_id("the worker", worker)
        if limit <= 0:
            return []
        given = (queue_of(run_id), worker, limit, seconds, request_name())
        return await self._run(self._writer, lambda tries: self._rollouts.lease(*given, tries))

    async def wait_queued(self, timeout: float, *, run_id: str | None = None) -> bool:
        async def look(pending: set[Topic]) -> tuple[set[Topic], float]:
            seconds = await self._run(self._reader, lambda tries: self._work_in(run_id))
            return (pending if seconds > 0 else set()), min(seconds, self._look_seconds)

        self._listener.listen(QUEUED)
        return not await self._notifications.wait([QUEUE], timeout, look)

    async def heartbeat(self, attempts: Sequence[Attempt], seconds: float) -> list[Attempt]:
        if not attempts:
            return []
        return await self._run(self._writer, lambda tries: self._rollouts.heartbeat(attempts, seconds))

    async def finish(
        self, attempt: Attempt, *, reward: float | None = None, error: str | None = None
    ) -> Rollout:
        request = request_name()
        return await self._run(
            self._writer, lambda tries: self._rollouts.finish(attempt, reward, error, request)
        )

    async def cancel(self, rollout_ids: Sequence[str]) -> int:
        def rule(row: Row, now: float) -> Rollout | None:
            return None if row.rollout.status.finished else rules.cancelled(row.rollout, now)

        return await self._change(rollout_ids, rule)

    async def wait_cancelled(self, worker: str, timeout: float) -> bool:
        with self._notifications.waiting([cancelled_of(worker)]) as waiter:
            self._listener.listen(CANCELLED)
            return await waiter.sleep(timeout)

    async def release(self, attempts: Sequence[Attempt]) -> None:
        by_id: defaultdict[str, list[Attempt]] = defaultdict(list)
        for attempt in attempts:
            by_id[attempt.rollout.id].append(attempt)

        def rule(row: Row, now: float) -> Rollout | None:
            held = any(rules.holds(attempt, row.rollout) for attempt in by_id[row.rollout.id])
            return rules.released(row.rollout) if held else None

        await self._change(list(by_id), rule)

    async def reclaim(self, worker: str, *, run_id: str | None = None) -> int:
        held = await self._read("SMEMBERS", self._key("held", worker))

        def rule(row: Row, now: float) -> Rollout | None:
            holds = row.rollout.status is Status.RUNNING and row.worker == worker
            wanted = holds and run_id in (None, row.rollout.run_id)
            return rules.released(row.rollout) if wanted else None

        return await self._change([redis_rows.text(name) for name in held], rule)

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
        return await self._run(
            self._reader, lambda tries: self._rollouts.page(run_id, wanted, after, limit, newest)
        )

    async def count_rollouts(self, run_id: str) -> list[RolloutCount]:
        return await self._run(self._reader, lambda tries: self._rollouts.count(run_id))

    async def get_rollouts(self, rollout_ids: Sequence[str]) -> list[Rollout]:
        found = await self._run(self._reader, lambda tries: self._rollouts.read_all(rollout_ids))
        return rules.all_found(rollout_ids, {row.rollout.id: row.rollout for row in found})

    async def wait_finished(self, rollout_ids: Sequence[str], timeout: float | None = None) -> list[Rollout]:
        async def look(pending: set[Topic]) -> tuple[set[Topic], float]:
            finished = await self._finished(name for _, name in pending)
            return pending - set(map(finished_of, finished)), self._look_seconds

        if rollout_ids:
            self._listener.listen(FINISHED)
        await self._notifications.wait(map(finished_of, rollout_ids), timeout, look)
        rows = await self._run(self._reader, lambda tries: self._rollouts.read_all(rollout_ids))
        return [row.rollout for row in rows if row.rollout.status.finished]

    # what happened in them ----------------------------------------------------------------
    async def add_call(self, call: Call, *, running: bool = False) -> None:
        rules.check_ids(call)
        now = time.time_ns()
        await self._run(self._writer, lambda tries: self._rollouts.add_call(call, now, running=running))

    async def add_rewards(self, rewards: Sequence[Reward], *, running: bool = False) -> None:
        rules.check_ids(*rewards)
        for reward in rewards:
            rules.check_reward(reward.rollout_id, reward.value)
        if rewards:
            request = request_name()
            await self._run(
                self._writer, lambda tries: self._rollouts.add_rewards(rewards, request, running=running)
            )

    async def add_events(self, events: Sequence[Event]) -> None:
        if not events:
            return
        now = time.time_ns()

        def operation(tries: int) -> Steps[None]:
            change = Change()
            for place, event in enumerate(events, now):
                key = self._key("events", event.attempt, event.rollout_id)
                name = f"{event.kind}:{rules.event_id(event)}"
                change.commands.append(("HSET", key, name, redis_rows.pack_event(event, place)))
            yield [self._rollouts.commit([change])]

        await self._run(self._writer, operation)

    async def get_calls(self, rollout_ids: Iterable[str]) -> dict[str, list[Call]]:
        found = await self._of_last_attempts("calls", rollout_ids)
        return {name: redis_rows.unpack_calls(packed) for name, packed in found.items()}

    async def get_rewards(self, rollout_ids: Iterable[str]) -> dict[str, list[Reward]]:
        found = await self._of_last_attempts("rewards", rollout_ids)
        return {name: redis_rows.load_appended(Reward, packed) for name, packed in found.items()}

    async def get_events(self, rollout_ids: Iterable[str]) -> dict[str, list[Event]]:
        found = await self._of_last_attempts("events", rollout_ids)
        return {name: redis_rows.unpack_events(packed) for name, packed in found.items()}

    # what is learnt -----------------------------------------------------------------------
    async def put_resource(self, version: ResourceVersion) -> None:
        rules.check_ids(version)
        field = f"{version.version}:{version.name}"
        await self._write("HSET", self._key("resources", version.run_id), field, redis_rows.dump(version))

    async def list_resources(self, run_id: str, name: str = "policy") -> list[ResourceVersion]:
        versions = await self._values(ResourceVersion, self._key("resources", run_id))
        return sorted((one for one in versions if one.name == name), key=lambda one: one.version)

    async def put_metrics(self, metrics: Metrics) -> None:
        rules.check_ids(metrics)
        key = self._key("metrics", metrics.run_id)
        await self._write("HSET", key, metrics.step, redis_rows.dump(metrics))

    async def list_metrics(self, run_id: str) -> list[Metrics]:
        return sorted(await self._values(Metrics, self._key("metrics", run_id)), key=lambda one: one.step)

    # who plays in a run, and what is wrong with it ----------------------------------------
    async def put_member(self, member: Member) -> None:
        rules.check_ids(member)
        field = f"{member.role}:{member.name}"
        await self._write("HSET", self._key("members", member.run_id), field, redis_rows.dump(member))

    async def remove_member(self, run_id: str, role: Role, name: str) -> None:
        await self._write("HDEL", self._key("members", run_id), f"{role}:{name}")

    async def list_members(self, run_id: str) -> list[Member]:
        members = await self._values(Member, self._key("members", run_id))
        return sorted(members, key=lambda member: (member.role, member.name))

    async def add_alerts(self, alerts: Sequence[Alert]) -> int:
        rules.check_ids(*alerts)
        request, first = request_name(), firsts(alerts, lambda alert: (alert.run_id, alert.id))

        def operation(tries: int) -> Steps[int]:
            change = Change()
            for alert in first:
                words = (self._key("alerts", alert.run_id), alert.id, request, redis_rows.dump(alert))
                change.commands.append(("APPEND", *words))
            ((new,),) = yield [self._rollouts.commit([change])]
            return int(new)

        return await self._run(self._writer, operation) if alerts else 0

    async def list_alerts(self, run_id: str) -> list[Alert]:
        return redis_rows.load_appended(Alert, await self._read("HVALS", self._key("alerts", run_id)))

    # ways to the threads ------------------------------------------------------------------
    async def _run(self, worker: Worker[Connection], operation: Operation[R]) -> R:
        result: R = await worker.run(operation)
        return result

    async def _write(self, *command: Any) -> None:
        """A command that may be carried out twice."""

        def operation(tries: int) -> Steps[None]:
            yield [command]

        await self._run(self._writer, operation)

    async def _ask(self, commands: Commands) -> list[Any]:
        def operation(tries: int) -> Steps[list[Any]]:
            return (yield commands)

        return await self._run(self._reader, operation)

    async def _read(self, *command: Any) -> Any:
        (answer,) = await self._ask([command])
        return answer

    async def _values(self, kind: type[T], key: str) -> list[T]:
        return redis_rows.load(kind, await self._read("HVALS", key))

    async def _change(self, rollout_ids: Sequence[str], rule: Rule) -> int:
        """Change those that the rule changes; returns how many it did."""
        request = request_name()
        changed = await self._run(
            self._writer, lambda tries: self._rollouts.change(rollout_ids, rule, request)
        )
        return len(changed)

    async def _of_last_attempts(self, kind: str, rollout_ids: Iterable[str]) -> dict[str, list[bytes]]:
        names = list(dict.fromkeys(rollout_ids))
        found: list[list[bytes]] = []
        for at in range(0, len(names), AT_ONCE):
            words = (self.url.prefix, kind, *names[at : at + AT_ONCE])
            (answer,) = await self._ask([self._rollouts.script("last", *words)])
            found += answer
        return dict(zip(names, found, strict=True))

    def _work_in(self, run_id: str | None) -> Steps[float]:
        """In how many seconds there may be something to lease; 0 if there is."""
        first_lease = ("ZRANGE", self._key("leases"), 0, 0, "WITHSCORES")
        queued, first, clock = yield [("EXISTS", self._key(queue_of(run_id))), first_lease, ("TIME",)]
        if queued:
            return 0.0
        return float(first[1]) - to_time(clock) if first else math.inf

    async def _finished(self, rollout_ids: Iterable[str]) -> set[str]:
        """Those among them that are finished. Raises NotFoundError if one is unknown."""
        names = list(rollout_ids)
        statuses = await self._ask([("HGET", self._key("rollout", name), "s") for name in names])
        for name, status in zip(names, statuses, strict=True):
            if status is None:
                raise NotFoundError(
                    f"no rollout {name!r} in {self.url.shown!r}: enqueue it before waiting for it"
                )
        pairs = zip(names, statuses, strict=True)
        return {name for name, status in pairs if Status(status.decode()).finished}
