"""Rollouts from the side of those who run them: lease, heartbeat, finish, release.

The rules by which a run's trainer has its rollouts run hold for workers in any language too. A run that no
trainer opened has none, and its attempts end as they are finished.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.responses import Response

from lightning_core.api.access import Admin, Lease, Principal, Worker, lease_key, read_lease, secret_of
from lightning_core.api.fields import (
    KEY_EXAMPLE,
    LONGEST_WAIT,
    Held,
    Key,
    Keys,
    Name,
    Nothing,
    Seconds,
    Wait,
    answer,
    example,
)
from lightning_core.api.routing import JsonRoute, reply, wait_with
from lightning_core.errors import AccessError, RewardError
from lightning_core.gateway.tokens import Tokens, expiry
from lightning_core.records.types import UNNAMED, Attempt, Record, Rollout, Run
from lightning_core.runner.config import may_end_without_reward, read_config
from lightning_core.runner.gateways import (
    RETRY_SECONDS,
    GatewayFinder,
    choose,
)
from lightning_core.stores.base import Store
from lightning_core.stores.rules import holds
from lightning_core.tracing.environment import variables

router = APIRouter(prefix="/leases", tags=["leases"], route_class=JsonRoute)
Waiting = Annotated[float, Query(ge=0, le=LONGEST_WAIT, description="Seconds to wait.")]


# bodies ---------------------------------------------------------------------------------------------
class LeaseRequest(Record):
    """A worker's request for leases."""

    model_config = example(worker="w1", limit=4, seconds=60, wait=30, agent="writer")
    worker: Name
    """Its own name."""
    limit: int = Field(default=1, ge=1, le=1024)
    """How many rollouts at most."""
    seconds: Seconds = 60.0
    """How long it holds them, unless a heartbeat comes; then they are given to others."""
    wait: Wait = 0.0
    """Seconds to wait for one if there is none."""
    run_id: str | None = None
    """Only of this run; with a token of one run it is that run."""
    agent: Name = UNNAMED
    """As whom the app's calls are recorded."""
    gateway: bool = True
    """Whether to find a gateway for the app: nothing is leased while the run's gateways are away, and each
    lease has an `environment`. False for a worker that finds one by itself."""


class Leased(Record):
    """A rollout that the worker holds."""

    key: str = Field(examples=[KEY_EXAMPLE])
    """The proof of it: every further request about this attempt bears it."""
    attempt: Attempt
    timeout: float | None = None
    """Seconds after which the run wants an attempt ended, as a failure; None for no limit."""
    environment: dict[str, str] | None = None
    """The app's environment variables, `OPENAI_BASE_URL`, `OPENAI_API_KEY` and `LIGHTNING_REWARD_URL`
    among them: calls made with these are answered by the policy and recorded. None if no
    gateway answers: give the lease back, unless the app needs none."""


class HeartbeatRequest(Record):
    """Which leases to extend."""

    model_config = example(keys=[KEY_EXAMPLE], seconds=60, wait=20)
    keys: Keys
    seconds: Seconds = 60.0
    """From now on."""
    wait: Wait = 0.0
    """With all still held: seconds to wait for a cancellation, so that a worker hears of it at once; at
    most half of `seconds`, so that none is lost by it."""


class Finish(Record):
    """How an attempt ended: with `reward` it succeeded, with `error` it failed, with both it failed for
    good and has that reward. With neither it succeeded: its final reward was posted before, or a judge
    gives it."""

    model_config = example(key=KEY_EXAMPLE, reward=1.0)
    key: Key
    """For an attempt that an admin names without its key, no rules of the run's trainer are applied."""
    reward: float | None = None
    error: str | None = None
    world: bool = False
    """Whether a connection or a server failed and not the app: the attempt is then tried again, or dropped,
    whatever the policy had replied before."""


class Release(Record):
    """Which leases to give back unfinished."""

    model_config = example(keys=[KEY_EXAMPLE])
    keys: Keys


class Reclaim(Record):
    """A dead worker's leases."""

    model_config = example(worker="w1")
    worker: Name
    run_id: str | None = None
    """Only of this run; with a token of one run it is that run."""


Leases = answer("Leases", "Leased rollouts.", leases=(list[Leased], "Empty if there was nothing to do."))
News = answer("News", "How a wait ended.", news=(bool, "Whether it ended before the time was up."))
Beat = answer(
    "Beat",
    "Which leases are held.",
    held=(list[Key], "The keys of leases that were extended."),
    lost=(list[Key], "Of those that ended, were cancelled or went to others: stop working on them."),
)
Reclaimed = answer("Reclaimed", "Rollouts taken back.", released=(int, "How many are queued again."))


# routes ---------------------------------------------------------------------------------------------
@router.post("", response_model=Leases)
async def lease(body: LeaseRequest, caller: Worker, request: Request) -> Response:
    """Lease rollouts: the most urgent first, each with the environment that its app is to be run in.

    A worker that finds none waits up to `wait` seconds, also while a run's gateways are away. What it does
    not finish or extend within `seconds` is given to others.
    """
    gateways: GatewayFinder = request.app.state.gateways
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


async def _leased(attempt: Attempt, body: LeaseRequest, caller: Principal, gateways: GatewayFinder) -> Leased:
    rollout = attempt.rollout
    run = await caller.store.find_run(rollout.run_id)
    rules = None if run is None else read_config(run)
    timeout = None if rules is None else rules.timeout
    tokens = _tokens(run)
    found = await gateways.answering(rollout.run_id) if body.gateway and tokens else []
    lease = Lease(rollout.run_id, rollout.id, attempt.number, attempt.worker)
    environment = None
    if found and tokens:
        gateway = choose(found, rollout.id)
        token = tokens.issue(rollout, attempt.number, expires_at=expiry(timeout))
        environment = variables(gateway.url, rollout.id, token, body.agent)
        lease = replace(lease, gateway_url=gateway.url, gateway_instance=gateway.instance)
    key = lease_key(caller.secret, lease)
    return Leased(key=key, attempt=attempt, timeout=timeout, environment=environment)


def _tokens(run: Run | None) -> Tokens | None:
    """Returns the maker of a run's rollout tokens; None for a run without a secret."""
    try:
        return Tokens(secret_of(run, ""))
    except AccessError:
        return None


async def _lease(
    body: LeaseRequest, caller: Principal, request: Request, gateways: GatewayFinder
) -> list[Attempt]:
    run_id = caller.one_or_all(body.run_id)
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


@router.get("", response_model=News)
async def wait_queued(
    caller: Worker, request: Request, run_id: str | None = None, wait: Waiting = 0.0
) -> Response:
    """Wait until there may be something to lease, whatever the run's gateways do. Another worker may be
    faster."""
    news = caller.store.wait_queued(wait, run_id=caller.one_or_all(run_id))
    return reply({"news": bool(await wait_with(request, news))})


@router.get("/cancelled", response_model=News)
async def wait_cancelled(worker: str, caller: Worker, request: Request, wait: Waiting = 0.0) -> Response:
    """Wait until something that the worker held was cancelled; a heartbeat says which. A cancellation between
    two of these requests is seen by the next heartbeat only."""
    news = caller.store.wait_cancelled(worker, wait)
    return reply({"news": bool(await wait_with(request, news))})


@router.post("/heartbeat", response_model=Beat)
async def heartbeat(body: HeartbeatRequest, caller: Worker, request: Request) -> Response:
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

    The rules of the run's trainer hold: a failure after replies of the policy counts as its failure policy
    says, and without a reward only those rollouts succeed that a judge will score. What failed because the
    gateway of the attempt was away is queued again, and costs no attempt.
    """
    (attempt,) = await caller.attempts([body.key])
    if isinstance(body.key, Held):
        return reply(await caller.store.finish(attempt, reward=body.reward, error=body.error))
    if body.error is not None and holds(attempt, attempt.rollout):
        gateways: GatewayFinder = request.app.state.gateways
        sent = read_lease(caller.secret, body.key)
        url = sent.gateway_url
        if url is not None and await gateways.lost(sent.run_id, url, sent.gateway_instance):
            await caller.store.release([attempt])
            return reply((await caller.rollouts([attempt.rollout.id]))[0])
    reward = await _reward_of(caller.store, attempt, body)
    return reply(await caller.store.finish(attempt, reward=reward, error=body.error))


@router.post("/release", response_model=Nothing)
async def release(body: Release, caller: Worker) -> Response:
    """Give leases back unfinished: others take them, and it costs them no attempt."""
    await caller.store.release(await caller.attempts(body.keys))
    return reply({})


@router.post("/reclaim", response_model=Reclaimed)
async def reclaim(body: Reclaim, caller: Admin) -> Response:
    """Give back everything that a worker held when it died: for one that starts again under its name."""
    released = await caller.store.reclaim(body.worker, run_id=caller.one_or_all(body.run_id))
    return reply({"released": released})


# the rules of the run's trainer ---------------------------------------------------------------------
async def _reward_of(store: Store, attempt: Attempt, body: Finish) -> float | None:
    """The reward to end the attempt with. Raises RewardError for a success without any."""
    rollout = attempt.rollout
    run = await store.find_run(rollout.run_id)
    rules = None if run is None else read_config(run)
    if body.reward is not None or rules is None:
        return body.reward
    if body.error is not None:
        calls = (await store.get_calls([rollout.id]))[rollout.id]
        return rules.on_failure.reward_of_failure(attempt, calls, world=body.world)
    if holds(attempt, rollout) and not await may_end_without_reward(store, attempt, judged=rules.judged):
        raise RewardError(
            f"rollout {rollout.id!r} was given no final reward and no judge will give it one; finish it with "
            "`reward`, or with `error` if it failed"
        )
    return None
