"""A store behind the REST API (`agentlightning api`): all that its user needs is a URL and a token.

The token is an admin's, of one run or of all. Every operation is one request, or one for each page of a list,
and is as atomic as that of the store behind the API. An operation whose answer was lost is sent again where
doing it twice does no harm; a connection that could not be made is always tried again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, TypeAdapter

from lightning_core.errors import NotFoundError
from lightning_core.records.types import (
    Alert,
    Attempt,
    Call,
    Credited,
    Event,
    Member,
    Metrics,
    Order,
    ResourceVersion,
    Reward,
    Role,
    Rollout,
    RolloutCount,
    Run,
    Status,
)
from lightning_core.stores import rules
from lightning_core.stores.http_link import Link, address_of

_MOST: Final = 10_000
"""Records of one request, and entries of one page."""
_MOST_LEASES: Final = 1024
_MOST_IDS, _MOST_ID_BYTES = 1000, 16_000
"""Limits of one request that has ids in its address."""
_SHORTEST, _LONGEST = 1e-6, 86_400.0
"""Seconds of a lease. One that is to have run out already runs out on its way here."""
_WAIT_SECONDS: Final = 60.0
"""The longest wait of one request."""
_CALLS: Final = TypeAdapter(dict[str, list[Call]])
_REWARDS: Final = TypeAdapter(dict[str, list[Reward]])
_EVENTS: Final = TypeAdapter(dict[str, list[Event]])
_CREDITED: Final = TypeAdapter(dict[str, list[Credited]])

T = TypeVar("T")
Model = TypeVar("Model", bound=BaseModel)


class HttpStore:
    """`http://[:token@]host[:port][/path]`, or `https://`. May be used from any thread and event loop."""

    def __init__(self, url: str, *, server_timeout: float = 60.0) -> None:
        """`server_timeout`: how long operations wait for an API that is away before they raise StoreError."""
        self._link = Link(*address_of(url), server_timeout)

    async def __aenter__(self) -> HttpStore:
        await self._link.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._link.close()

    # runs ---------------------------------------------------------------------------------
    async def put_run(self, run: Run) -> None:
        rules.check_ids(run)
        await self._put("/runs", run)

    async def find_run(self, run_id: str) -> Run | None:
        runs = await self._pages("/secrets", "runs", Run, run_id=run_id)
        return runs[0] if runs else None

    async def list_runs(self) -> list[Run]:
        return await self._pages("/secrets", "runs", Run)

    # the queue of rollouts ----------------------------------------------------------------
    async def enqueue(self, rollouts: Sequence[Rollout]) -> int:
        rules.check_ids(*rollouts)
        bodies = ({"rollouts": part} for part in _parts(rollouts))
        return sum([(await self._post("/rollouts", body))["new"] for body in bodies])

    async def lease(
        self, worker: str, limit: int, seconds: float, *, run_id: str | None = None
    ) -> list[Attempt]:
        rules.check_id("the worker", worker)
        if limit < 1:
            return []
        body = {"worker": worker, "limit": min(limit, _MOST_LEASES), "seconds": _bounded(seconds)}
        # an answer that is lost is not asked for again: the API gives back what a client that left was leased
        leased = await self._post("/leases", body | {"run_id": run_id, "gateway": False}, again=False)
        return [Attempt.model_validate(one["attempt"]) for one in leased["leases"]]

    async def wait_queued(self, timeout: float, *, run_id: str | None = None) -> bool:
        return await self._wait("/leases", timeout, run_id=run_id)

    async def heartbeat(self, attempts: Sequence[Attempt], seconds: float) -> list[Attempt]:
        if not attempts:
            return []
        body = {"keys": [_held(attempt) for attempt in attempts], "seconds": _bounded(seconds)}
        beat = await self._post("/leases/heartbeat", body)
        held = {(one["rollout_id"], one["attempt"]) for one in beat["held"]}
        extended = {"lease_until": time.time() + seconds}
        kept = [one for one in attempts if (one.rollout.id, one.number) in held]
        return [one.model_copy(update=extended) for one in kept]

    async def finish(
        self, attempt: Attempt, *, reward: float | None = None, error: str | None = None
    ) -> Rollout:
        if reward is not None:
            rules.check_reward(attempt.rollout.id, reward)
        body = {"key": _held(attempt), "reward": reward, "error": error}
        try:
            return Rollout.model_validate(await self._post("/leases/finish", body))
        except NotFoundError:
            return rules.finished(attempt, None, reward=reward, error=error, given=None, now=time.time())

    async def cancel(self, rollout_ids: Sequence[str]) -> int:
        bodies = ({"rollout_ids": part, "skip_unknown": True} for part in _parts(rollout_ids))
        return sum([(await self._post("/rollouts/cancel", body))["cancelled"] for body in bodies])

    async def wait_cancelled(self, worker: str, timeout: float) -> bool:
        return await self._wait("/leases/cancelled", timeout, worker=worker)

    async def release(self, attempts: Sequence[Attempt]) -> None:
        if attempts:
            await self._post("/leases/release", {"keys": [_held(attempt) for attempt in attempts]})

    async def reclaim(self, worker: str, *, run_id: str | None = None) -> int:
        answer = await self._post("/leases/reclaim", {"worker": worker, "run_id": run_id})
        return int(answer["released"])

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
        query = {"run_id": run_id, "step": step, "split": split, "status": status, "after": after}
        query |= {"before": before, "order": order}
        last = newest and limit is not None and limit <= _MOST
        if limit is not None and limit < 1:
            return []
        wanted = limit if last or not newest else None
        found = await self._pages("/rollouts", "rollouts", Rollout, most=wanted, newest=last, **query)
        return found if limit is None or not newest else found[-limit:]

    async def count_rollouts(self, run_id: str) -> list[RolloutCount]:
        return _read(RolloutCount, (await self._get("/counts", run_id=run_id))["counts"])

    async def get_rollouts(self, rollout_ids: Sequence[str]) -> list[Rollout]:
        bodies = ({"rollout_ids": part} for part in _parts(rollout_ids))
        found = [await self._post("/rollouts/read", body) for body in bodies]
        return [rollout for part in found for rollout in _read(Rollout, part["rollouts"])]

    async def wait_finished(self, rollout_ids: Sequence[str], timeout: float | None = None) -> list[Rollout]:
        until = None if timeout is None else time.monotonic() + timeout
        parts = [await self._wait_finished(part, until) for part in _parts(rollout_ids)]
        return [rollout for part in parts for rollout in part]

    async def _wait_finished(self, rollout_ids: Sequence[str], until: float | None) -> list[Rollout]:
        for wait in _waits(until):
            body = {"rollout_ids": rollout_ids, "wait": wait}
            answer = await self._post("/rollouts/wait", body, wait=wait)
            if answer["done"]:
                break
        return _read(Rollout, answer["rollouts"])

    # what happened in them ----------------------------------------------------------------
    async def add_call(self, call: Call, *, running: bool = False) -> None:
        rules.check_ids(call)
        await self._post("/calls", {"calls": [call], "running": running})

    async def add_rewards(self, rewards: Sequence[Reward], *, running: bool = False) -> None:
        rules.check_ids(*rewards)
        for reward in rewards:
            rules.check_reward(reward.rollout_id, reward.value)
        for part in _parts(rewards):
            named = all(reward.id is not None for reward in part)  # one without an id would count twice
            await self._post("/rewards", {"rewards": part, "running": running}, again=named)

    async def add_events(self, events: Sequence[Event]) -> None:
        for part in _parts(events):
            await self._post("/events", {"events": part})

    async def get_calls(self, rollout_ids: Iterable[str]) -> dict[str, list[Call]]:
        return await self._of_rollouts("calls", rollout_ids, _CALLS)

    async def get_rewards(self, rollout_ids: Iterable[str]) -> dict[str, list[Reward]]:
        return await self._of_rollouts("rewards", rollout_ids, _REWARDS)

    async def get_events(self, rollout_ids: Iterable[str]) -> dict[str, list[Event]]:
        return await self._of_rollouts("events", rollout_ids, _EVENTS)

    async def add_credited(self, credited: Sequence[Credited]) -> None:
        rules.check_ids(*credited)
        for part in _parts(credited):
            await self._post("/credited", {"credited": part})

    async def get_credited(self, rollout_ids: Iterable[str]) -> dict[str, list[Credited]]:
        return await self._of_rollouts("credited", rollout_ids, _CREDITED)

    async def _of_rollouts(
        self, name: str, rollout_ids: Iterable[str], kind: TypeAdapter[dict[str, list[T]]]
    ) -> dict[str, list[T]]:
        found: dict[str, list[T]] = {rollout_id: [] for rollout_id in rollout_ids}
        for part in _addressed(list(found)):
            answer = await self._get(f"/{name}", rollout_id=part, skip_unknown=True)
            found |= kind.validate_python(answer[name])
        return found

    # what is learnt -----------------------------------------------------------------------
    async def put_resource(self, version: ResourceVersion) -> None:
        rules.check_ids(version)
        await self._put("/resources", version)

    async def list_resources(self, run_id: str, name: str = "policy") -> list[ResourceVersion]:
        answer = await self._get("/resources", run_id=run_id, name=name)
        return _read(ResourceVersion, answer["resources"])

    async def put_metrics(self, metrics: Metrics) -> None:
        rules.check_ids(metrics)
        await self._put("/metrics", metrics)

    async def list_metrics(
        self, run_id: str, *, since: int | None = None, limit: int | None = None
    ) -> list[Metrics]:
        if limit is not None and limit < 1:
            return []
        return await self._pages("/metrics", "metrics", Metrics, most=limit, run_id=run_id, since=since)

    # who plays in a run, and what is wrong with it ----------------------------------------
    async def put_member(self, member: Member) -> None:
        rules.check_ids(member)
        await self._put("/members", member)

    async def remove_member(self, run_id: str, role: Role, name: str) -> None:
        await self._link.ask("DELETE", "/members", query={"run_id": run_id, "role": role, "name": name})

    async def list_members(self, run_id: str) -> list[Member]:
        return _read(Member, (await self._get("/members", run_id=run_id))["members"])

    async def add_alerts(self, alerts: Sequence[Alert]) -> int:
        rules.check_ids(*alerts)
        bodies = ({"alerts": part} for part in _parts(alerts))
        return sum([(await self._post("/alerts", body))["new"] for body in bodies])

    async def list_alerts(self, run_id: str) -> list[Alert]:
        return await self._pages("/alerts", "alerts", Alert, run_id=run_id)

    # requests -----------------------------------------------------------------------------
    async def _get(self, path: str, **query: Any) -> Any:
        return await self._link.ask("GET", path, query=query)

    async def _put(self, path: str, record: BaseModel) -> None:
        await self._link.ask("PUT", path, record)

    async def _post(self, path: str, body: dict[str, Any], *, wait: float = 0.0, again: bool = True) -> Any:
        return await self._link.ask("POST", path, body, wait=wait, again=again)

    async def _pages(
        self, path: str, name: str, kind: type[Model], *, most: int | None = None, **query: Any
    ) -> list[Model]:
        """All entries of a list, or the first `most`."""
        found: list[Model] = []
        while True:
            limit = _MOST if most is None else min(_MOST, most - len(found))
            page = await self._get(path, **query, limit=limit)
            found += _read(kind, page[name])
            query["after"] = page["next"]
            if page["next"] is None or len(found) == most:
                return found

    async def _wait(self, path: str, timeout: float, **query: Any) -> bool:
        """Whether there was news before `timeout` seconds had passed."""
        for wait in _waits(time.monotonic() + timeout):
            answer = await self._link.ask("GET", path, query=query | {"wait": wait}, wait=wait)
            if answer["news"]:
                return True
        return False


def _waits(until: float | None) -> Iterator[float]:
    """Seconds of one wait after the other, at least one, until that time of the monotonic clock."""
    while True:
        left = _WAIT_SECONDS if until is None else until - time.monotonic()
        yield min(max(left, 0.0), _WAIT_SECONDS)
        if until is not None and time.monotonic() >= until:
            return


def _held(attempt: Attempt) -> dict[str, Any]:
    """The attempt by name, as the API takes it in place of the key of a lease."""
    return {"rollout_id": attempt.rollout.id, "attempt": attempt.number, "worker": attempt.worker}


def _bounded(seconds: float) -> float:
    return min(max(seconds, _SHORTEST), _LONGEST)


def _parts(records: Sequence[T]) -> Iterator[Sequence[T]]:
    for first in range(0, len(records), _MOST):
        yield records[first : first + _MOST]


def _addressed(rollout_ids: Sequence[str]) -> Iterator[list[str]]:
    """Ids for one address each, which may not be too long."""
    part: list[str] = []
    size = 0
    for rollout_id in rollout_ids:
        own = len(quote(rollout_id, safe=""))
        if part and (len(part) == _MOST_IDS or size + own > _MOST_ID_BYTES):
            yield part
            part, size = [], 0
        part.append(rollout_id)
        size += own + len("&rollout_id=")
    if part:
        yield part


def _read(kind: type[Model], found: Iterable[Any]) -> list[Model]:
    return [kind.model_validate(one) for one in found]
