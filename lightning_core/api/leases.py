"""Rollouts from the side of those who run them: lease, heartbeat, finish, release.

The rules by which a run's trainer has its rollouts run hold for workers in any language too. A run that no
trainer opened has none, and its attempts end as they are finished.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from lightning_core.api.access import Admin, Caller, Worker
from lightning_core.api.bodies import (
    LONGEST_WAIT,
    Beat,
    Finish,
    Heartbeat,
    Held,
    Key,
    Leased,
    LeaseRequest,
    Leases,
    News,
    Nothing,
    Reclaim,
    Reclaimed,
    Release,
)
from lightning_core.api.gateways import Gateways
from lightning_core.api.routing import JsonRoute, reply, wait_with
from lightning_core.api.scopes import Lease, lease_key, read_lease
from lightning_core.errors import RewardError
from lightning_core.runner.config import RolloutConfig, read_config
from lightning_core.runner.gateways import RETRY_SECONDS
from lightning_core.stores.base import Store
from lightning_core.stores.rules import holds, last_final
from lightning_core.types import Attempt, Rollout

router = APIRouter(prefix="/leases", tags=["leases"], route_class=JsonRoute)
Waiting = Annotated[float, Query(ge=0, le=LONGEST_WAIT, description="Seconds to wait.")]


@router.post("", response_model=Leases)
async def lease(body: LeaseRequest, caller: Worker, request: Request) -> Response:
    """Lease rollouts: the most urgent first, each with the environment that its app is to be run in.

    A worker that finds none waits up to `wait` seconds, also while a run's gateways are away. What it does
    not finish or extend within `seconds` is given to others.
    """
    gateways: Gateways = request.app.state.gateways
    attempts = await _lease(body, caller, request, gateways)
    try:
        leases = [await _leased(attempt, body, caller, gateways) for attempt in attempts]
        heard = not attempts or not await request.is_disconnected()
    except BaseException:
        await caller.store.release(attempts)
        raise
    if not heard:
        await caller.store.release(attempts)
    return reply({"leases": leases})


async def _leased(attempt: Attempt, body: LeaseRequest, caller: Caller, gateways: Gateways) -> Leased:
    rollout, timeout = attempt.rollout, await _timeout_of(caller.store, attempt)
    to = await gateways.destination(attempt, body.agent, timeout) if body.gateway else None
    at = (to.gateway.url, to.gateway.instance) if to else (None, None)
    lease = Lease(rollout.run_id, rollout.id, attempt.number, attempt.worker, *at)
    return Leased(
        key=lease_key(caller.secret, lease),
        attempt=attempt,
        timeout=timeout,
        environment=to.environment if to else None,
    )


async def _lease(body: LeaseRequest, caller: Caller, request: Request, gateways: Gateways) -> list[Attempt]:
    run_id = _run_of(caller, body.run_id)
    store, deadline = caller.store, time.monotonic() + body.wait
    while True:
        away = body.gateway and run_id is not None and await gateways.away(run_id)
        attempts = [] if away else await store.lease(body.worker, body.limit, body.seconds, run_id=run_id)
        left = deadline - time.monotonic()
        if attempts or left <= 0:
            return attempts
        news = asyncio.sleep(RETRY_SECONDS, False) if away else store.wait_queued(left, run_id=run_id)
        if await wait_with(request, news) is None:
            return []


def _run_of(caller: Caller, run_id: str | None) -> str | None:
    """The run to lease of; None for any, with a token of all runs."""
    return caller.grant.run_id if run_id is None else caller.run(run_id)


@router.get("", response_model=News)
async def wait_queued(
    caller: Worker, request: Request, run_id: str | None = None, wait: Waiting = 0.0
) -> Response:
    """Wait until there may be something to lease, whatever the run's gateways do. Another worker may be
    faster."""
    news = caller.store.wait_queued(wait, run_id=_run_of(caller, run_id))
    return reply({"news": bool(await wait_with(request, news))})


@router.get("/cancelled", response_model=News)
async def wait_cancelled(worker: str, caller: Worker, request: Request, wait: Waiting = 0.0) -> Response:
    """Wait until something that the worker held was cancelled; a heartbeat says which. A cancellation between
    two of these requests is seen by the next heartbeat only."""
    news = caller.store.wait_cancelled(worker, wait)
    return reply({"news": bool(await wait_with(request, news))})


@router.post("/heartbeat", response_model=Beat)
async def heartbeat(body: Heartbeat, caller: Worker, request: Request) -> Response:
    """Extend leases, and hear which were lost. With `wait` the answer comes as soon as one is cancelled."""
    attempts = await caller.attempts(body.keys)
    held = await caller.store.heartbeat(attempts, body.seconds)
    if body.wait and attempts and len(held) == len(attempts):
        wait = min(body.wait, body.seconds / 2)  # the leases must outlast it
        await wait_with(request, caller.store.wait_cancelled(attempts[0].worker, wait))
        held = await caller.store.heartbeat(attempts, body.seconds)
    return reply(_beat(body.keys, attempts, held))


def _beat(keys: Sequence[Key], attempts: Sequence[Attempt], held: Sequence[Attempt]) -> dict[str, Any]:
    still = {(one.rollout.id, one.number) for one in held}
    kept = [key for key, one in zip(keys, attempts, strict=True) if (one.rollout.id, one.number) in still]
    return {"held": kept, "lost": [key for key in keys if key not in kept]}


@router.post("/finish", response_model=Rollout)
async def finish(body: Finish, caller: Worker, request: Request) -> Response:
    """End an attempt. The very same request may be sent again when its answer was lost.

    The rules of the run's trainer hold: a failure for good gets the penalty of its failure policy, if it has
    one, and without a reward only those rollouts succeed that a judge will score. What failed because the
    gateway of the attempt was away is queued again, and costs no attempt.
    """
    (attempt,) = await caller.attempts([body.key])
    if isinstance(body.key, Held):
        return reply(await caller.store.finish(attempt, reward=body.reward, error=body.error))
    if body.error is not None and holds(attempt, attempt.rollout):
        gateways: Gateways = request.app.state.gateways
        if await gateways.lost(read_lease(caller.secret, body.key)):
            await caller.store.release([attempt])
            return reply((await caller.rollouts([attempt.rollout.id]))[0])
    reward = await _reward_of(caller.store, attempt, body.reward, body.error)
    return reply(await caller.store.finish(attempt, reward=reward, error=body.error))


@router.post("/release", response_model=Nothing)
async def release(body: Release, caller: Worker) -> Response:
    """Give leases back unfinished: others take them, and it costs them no attempt."""
    await caller.store.release(await caller.attempts(body.keys))
    return reply({})


@router.post("/reclaim", response_model=Reclaimed)
async def reclaim(body: Reclaim, caller: Admin) -> Response:
    """Give back everything that a worker held when it died: for one that starts again under its name."""
    released = await caller.store.reclaim(body.worker, run_id=_run_of(caller, body.run_id))
    return reply({"released": released})


# the rules of the run's trainer ---------------------------------------------------------------------
async def _timeout_of(store: Store, attempt: Attempt) -> float | None:
    """The seconds that the attempt may take; None for no limit."""
    rules = await _rules(store, attempt)
    return None if rules is None else rules.timeout


async def _reward_of(store: Store, attempt: Attempt, reward: float | None, error: str | None) -> float | None:
    """The reward to end the attempt with. Raises RewardError for a success without any."""
    rules = await _rules(store, attempt)
    if reward is not None or rules is None:
        return reward
    if error is not None:
        return rules.on_failure.reward_of_failure(attempt)
    if holds(attempt, attempt.rollout):
        await _check_given(store, attempt, rules)
    return None


async def _check_given(store: Store, attempt: Attempt, rules: RolloutConfig) -> None:
    rollout = attempt.rollout
    if rules.judged and rollout.split == "train":
        return
    given = (await store.get_rewards([rollout.id]))[rollout.id]
    if last_final(given, attempt.number) is None:
        raise RewardError(
            f"rollout {rollout.id!r} was given no final reward and no judge will give it one; finish it with "
            "`reward`, or with `error` if it failed"
        )


async def _rules(store: Store, attempt: Attempt) -> RolloutConfig | None:
    run = await store.find_run(attempt.rollout.run_id)
    return None if run is None else read_config(run)
