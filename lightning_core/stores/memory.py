"""The store of one process: plain dicts under a lock. Fast, and gone when the process ends."""

from __future__ import annotations

import heapq
import math
import threading
import time
from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import islice

from lightning_core.errors import ConfigError, NotFoundError
from lightning_core.stores import clock, rules
from lightning_core.stores.notifications import QUEUE, Notifications, Topic, cancelled_of, finished_of
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


class MemoryStore:
    """`memory://`. May be used from any thread and event loop; no operation holds the lock for long."""

    def __init__(self, url: str = "memory://") -> None:
        if url != "memory://":
            raise ConfigError(
                f"store {url!r} is not a memory store: write 'memory://', without anything after it"
            )
        self._lock = threading.Lock()
        self._notifications = Notifications()
        self._runs: dict[str, Run] = {}
        self._rollouts: dict[str, Rollout] = {}
        self._lists: defaultdict[tuple[str, str, int | str], list[str]] = defaultdict(list)
        """The rollouts of each run, and of each step, status and split of it, by their place."""
        self._places: dict[str, int] = {}
        """Where a rollout stands in the order of arrival."""
        self._queues: defaultdict[str, list[tuple[int, int, str]]] = defaultdict(list)
        """For each run a heap of (-priority, place, rollout id); entries no longer queued are skipped."""
        self._leases: dict[str, Attempt] = {}
        self._ends: dict[str, float] = {}
        """When each lease runs out, by `clock`."""
        self._expiries: list[tuple[float, str]] = []
        """A heap of (end, rollout id); entries older than the lease are skipped."""
        self._calls: defaultdict[tuple[str | None, int | None], dict[str, Call]] = defaultdict(dict)
        self._rewards: defaultdict[tuple[str, int], list[Reward]] = defaultdict(list)
        self._reward_keys: set[rules.RewardKey] = set()
        self._events: defaultdict[tuple[str, int], dict[tuple[str, str], Event]] = defaultdict(dict)
        self._resources: defaultdict[tuple[str, str], dict[int, ResourceVersion]] = defaultdict(dict)
        self._metrics: defaultdict[str, dict[int, Metrics]] = defaultdict(dict)
        self._members: defaultdict[str, dict[tuple[Role, str], Member]] = defaultdict(dict)
        self._alerts: defaultdict[str, dict[str, Alert]] = defaultdict(dict)

    async def __aenter__(self) -> MemoryStore:
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None

    # runs ---------------------------------------------------------------------------------
    async def put_run(self, run: Run) -> None:
        rules.check_ids(run)
        with self._lock:
            self._runs[run.id] = run

    async def find_run(self, run_id: str) -> Run | None:
        with self._lock:
            return self._runs.get(run_id)

    async def list_runs(self) -> list[Run]:
        with self._lock:
            return sorted(self._runs.values(), key=lambda run: run.created_at, reverse=True)

    # the queue of rollouts ----------------------------------------------------------------
    async def enqueue(self, rollouts: Sequence[Rollout]) -> int:
        rules.check_ids(*rollouts)
        with self._lock:
            before = len(self._rollouts)
            for rollout in rollouts:
                if rollout.id not in self._rollouts:
                    self._places[rollout.id] = len(self._places)
                    for name in ("step", "split"):
                        self._lists[rollout.run_id, name, getattr(rollout, name)].append(rollout.id)
                    self._lists[rollout.run_id, "run", rollout.run_id].append(rollout.id)
                    self._put(rollout)
            return len(self._rollouts) - before

    async def lease(
        self, worker: str, limit: int, seconds: float, *, run_id: str | None = None
    ) -> list[Attempt]:
        rules.check_id("the worker", worker)
        with self._lock:
            self._expire()
            attempts: list[Attempt] = []
            while len(attempts) < limit and (rollout := self._pop_queued(run_id)) is not None:
                rollout = rules.started(rollout)
                self._replace(rollout)
                attempts.append(self._hold(rollout, worker, seconds))
            return attempts

    async def wait_queued(self, timeout: float, *, run_id: str | None = None) -> bool:
        with self._notifications.waiting([QUEUE]) as waiter:
            with self._lock:
                self._expire()
                if any(map(self._live_queue, list(self._queues) if run_id is None else [run_id])):
                    return True
                expiry = self._expiries[0][0] - clock.seconds() if self._expiries else math.inf
            return await waiter.sleep(min(timeout, expiry)) or expiry <= timeout

    async def heartbeat(self, attempts: Sequence[Attempt], seconds: float) -> list[Attempt]:
        with self._lock:
            held = [self._rollouts[a.rollout.id] for a in attempts if self._holds(a)]
            return [self._hold(rollout, self._leases[rollout.id].worker, seconds) for rollout in held]

    async def finish(
        self, attempt: Attempt, *, reward: float | None = None, error: str | None = None
    ) -> Rollout:
        now = time.time()
        with self._lock:
            before = self._rollouts.get(attempt.rollout.id)
            given = self._rewards.get((attempt.rollout.id, attempt.number), ())
            final = rules.last_final(given, attempt.number)
            after = rules.finished(attempt, before, reward=reward, error=error, given=final, now=now)
            if after is not before:
                self._put(after)
                if reward is not None:
                    self._rewards[after.id, after.attempts].append(rules.final_reward(after, reward, now))
            return after

    async def cancel(self, rollout_ids: Sequence[str]) -> int:
        now = time.time()
        with self._lock:
            found = (self._rollouts[i] for i in dict.fromkeys(rollout_ids) if i in self._rollouts)
            unfinished = [rollout for rollout in found if not rollout.status.finished]
            for rollout in unfinished:
                lease = self._leases.get(rollout.id)
                self._put(rules.cancelled(rollout, now))
                if lease is not None:
                    self._notifications.tell([cancelled_of(lease.worker)])
            return len(unfinished)

    async def wait_cancelled(self, worker: str, timeout: float) -> bool:
        with self._notifications.waiting([cancelled_of(worker)]) as waiter:
            return await waiter.sleep(timeout)

    async def release(self, attempts: Sequence[Attempt]) -> None:
        with self._lock:
            for attempt in attempts:
                if self._holds(attempt):
                    self._put(rules.released(self._rollouts[attempt.rollout.id]))

    async def reclaim(self, worker: str, *, run_id: str | None = None) -> int:
        with self._lock:
            held = [
                rollout_id
                for rollout_id, lease in self._leases.items()
                if lease.worker == worker and run_id in (None, lease.rollout.run_id)
            ]
            for rollout_id in held:
                self._put(rules.released(self._rollouts[rollout_id]))
            return len(held)

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
        with self._lock:
            ids = self._lists.get((run_id, *next(iter(wanted.items()), ("run", run_id))), [])
            first = 0
            if after is not None:
                if after not in self._rollouts or self._rollouts[after].run_id != run_id:
                    raise rules.unknown_after(after, run_id)
                first = bisect_right(ids, self._places[after], key=self._places.__getitem__)
            places = range(first, len(ids))
            found = (self._rollouts[ids[place]] for place in (reversed(places) if newest else places))
            fitting = (one for one in found if all(getattr(one, k) == v for k, v in wanted.items()))
            page = list(islice(fitting, limit))
        return page[::-1] if newest else page

    async def count_rollouts(self, run_id: str) -> list[RolloutCount]:
        return rules.count(await self.find_rollouts(run_id))

    async def get_rollouts(self, rollout_ids: Sequence[str]) -> list[Rollout]:
        with self._lock:
            return rules.all_found(rollout_ids, self._rollouts)

    async def wait_finished(self, rollout_ids: Sequence[str], timeout: float | None = None) -> list[Rollout]:
        async def look(pending: set[Topic]) -> tuple[set[Topic], float]:
            finished = self._finished([name for _, name in pending])
            return pending - {finished_of(rollout.id) for rollout in finished}, math.inf

        await self._notifications.wait(map(finished_of, rollout_ids), timeout, look)
        return self._finished(rollout_ids)

    # what happened in them ----------------------------------------------------------------
    async def add_call(self, call: Call, *, running: bool = False) -> None:
        rules.check_ids(call)
        with self._lock:
            calls = self._calls.get((call.rollout_id, call.attempt), {})
            while (known := calls.get(call.id)) is not None and known.status == "completed":
                if call.status != "completed" or call == known:
                    return
                call = rules.under_own_id(call)
            if running:
                rules.check_running(call, self._rollouts.get(call.rollout_id or ""))
            self._calls[call.rollout_id, call.attempt][call.id] = call

    async def add_rewards(self, rewards: Sequence[Reward], *, running: bool = False) -> None:
        rules.check_ids(*rewards)
        for reward in rewards:
            rules.check_reward(reward.rollout_id, reward.value)
        with self._lock:
            new = rules.new_rewards(rewards, self._reward_keys)
            for reward in new if running else ():
                rules.check_running(reward, self._rollouts.get(reward.rollout_id))
            for reward in new:
                self._rewards[reward.rollout_id, reward.attempt].append(reward)
            self._reward_keys.update(filter(None, map(rules.reward_key, new)))

    async def add_events(self, events: Sequence[Event]) -> None:
        with self._lock:
            for event in events:
                self._events[event.rollout_id, event.attempt][event.kind, rules.event_id(event)] = event

    async def get_calls(self, rollout_ids: Iterable[str]) -> dict[str, list[Call]]:
        with self._lock:
            calls = {i: list(self._calls.get(self._last_attempt(i), {}).values()) for i in rollout_ids}
        return {i: sorted(found, key=lambda call: call.started_at) for i, found in calls.items()}

    async def get_rewards(self, rollout_ids: Iterable[str]) -> dict[str, list[Reward]]:
        with self._lock:
            return {i: list(self._rewards.get(self._last_attempt(i), ())) for i in rollout_ids}

    async def get_events(self, rollout_ids: Iterable[str]) -> dict[str, list[Event]]:
        with self._lock:
            events = {i: list(self._events.get(self._last_attempt(i), {}).values()) for i in rollout_ids}
        return {i: sorted(found, key=lambda event: event.started_at) for i, found in events.items()}

    # what is learnt -----------------------------------------------------------------------
    async def put_resource(self, version: ResourceVersion) -> None:
        rules.check_ids(version)
        with self._lock:
            self._resources[version.run_id, version.name][version.version] = version

    async def list_resources(self, run_id: str, name: str = "policy") -> list[ResourceVersion]:
        with self._lock:
            versions = self._resources.get((run_id, name), {})
            return [versions[number] for number in sorted(versions)]

    async def put_metrics(self, metrics: Metrics) -> None:
        rules.check_ids(metrics)
        with self._lock:
            self._metrics[metrics.run_id][metrics.step] = metrics

    async def list_metrics(self, run_id: str) -> list[Metrics]:
        with self._lock:
            steps = self._metrics.get(run_id, {})
            return [steps[step] for step in sorted(steps)]

    # who plays in a run, and what is wrong with it ----------------------------------------
    async def put_member(self, member: Member) -> None:
        rules.check_ids(member)
        with self._lock:
            self._members[member.run_id][member.role, member.name] = member

    async def remove_member(self, run_id: str, role: Role, name: str) -> None:
        with self._lock:
            self._members[run_id].pop((role, name), None)

    async def list_members(self, run_id: str) -> list[Member]:
        with self._lock:
            members = self._members.get(run_id, {})
            return [members[key] for key in sorted(members)]

    async def add_alerts(self, alerts: Sequence[Alert]) -> int:
        rules.check_ids(*alerts)
        with self._lock:
            before = sum(map(len, self._alerts.values()))
            for alert in alerts:
                self._alerts[alert.run_id].setdefault(alert.id, alert)
            return sum(map(len, self._alerts.values())) - before

    async def list_alerts(self, run_id: str) -> list[Alert]:
        with self._lock:
            return list(self._alerts.get(run_id, {}).values())

    # inside the lock ----------------------------------------------------------------------
    def _put(self, rollout: Rollout) -> None:
        """Keep a rollout that no worker holds (any more)."""
        self._replace(rollout)
        self._leases.pop(rollout.id, None)
        self._ends.pop(rollout.id, None)
        if rollout.status is Status.QUEUED:
            entry = (-rollout.priority, self._places[rollout.id], rollout.id)
            heapq.heappush(self._queues[rollout.run_id], entry)
            self._notifications.tell([QUEUE])
        elif rollout.status.finished:
            self._notifications.tell([finished_of(rollout.id)])

    def _replace(self, rollout: Rollout) -> None:
        """Keep the rollout in place of what it was, if it was there, in the list of its status."""
        before = self._rollouts.get(rollout.id)
        self._rollouts[rollout.id] = rollout
        if before is None or before.status is not rollout.status:
            place = self._places.__getitem__
            if before is not None:
                old = self._lists[rollout.run_id, "status", before.status]
                del old[bisect_left(old, place(rollout.id), key=place)]
            insort(self._lists[rollout.run_id, "status", rollout.status], rollout.id, key=place)

    def _hold(self, rollout: Rollout, worker: str, seconds: float) -> Attempt:
        until = time.time() + seconds
        attempt = Attempt(rollout=rollout, number=rollout.attempts, worker=worker, lease_until=until)
        self._leases[rollout.id] = attempt
        self._ends[rollout.id] = end = clock.seconds() + seconds
        heapq.heappush(self._expiries, (end, rollout.id))
        return attempt

    def _holds(self, attempt: Attempt) -> bool:
        return rules.holds(attempt, self._rollouts.get(attempt.rollout.id))

    def _expire(self) -> None:
        now = clock.seconds()
        while self._expiries and self._expiries[0][0] <= now:
            end, rollout_id = heapq.heappop(self._expiries)
            if self._ends.get(rollout_id) == end:
                worker = self._leases[rollout_id].worker
                self._put(rules.expired(self._rollouts[rollout_id], worker, time.time()))

    def _pop_queued(self, run_id: str | None) -> Rollout | None:
        """The next queued rollout of that run (of all runs), taken out of its queue."""
        names = list(self._queues) if run_id is None else [run_id]
        tops = [(queue[0], name) for name in names if (queue := self._live_queue(name))]
        if not tops:
            return None
        (_, _, rollout_id), name = min(tops)
        heapq.heappop(self._queues[name])
        return self._rollouts[rollout_id]

    def _live_queue(self, run_id: str) -> list[tuple[int, int, str]]:
        """The queue of a run with a queued rollout on top; a queue without one is deleted."""
        queue = self._queues.get(run_id, [])
        while queue and self._rollouts[queue[0][2]].status is not Status.QUEUED:
            heapq.heappop(queue)
        if not queue:
            self._queues.pop(run_id, None)
        return queue

    def _last_attempt(self, rollout_id: str) -> tuple[str, int]:
        rollout = self._rollouts.get(rollout_id)
        return rollout_id, rollout.attempts if rollout is not None else 0

    def _finished(self, rollout_ids: Sequence[str]) -> list[Rollout]:
        with self._lock:
            unknown = [i for i in rollout_ids if i not in self._rollouts]
            if unknown:
                raise NotFoundError(
                    f"no rollout {unknown[0]!r} in this store: enqueue it before waiting for it"
                )
            found = (self._rollouts[i] for i in rollout_ids)
            return [rollout for rollout in found if rollout.status.finished]
