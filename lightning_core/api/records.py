"""What happened in rollouts: calls, rewards, and events, which are tool runs and spans."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from lightning_core.api.access import Client, Worker
from lightning_core.api.bodies import (
    MOST_IDS,
    AddCalls,
    AddEvents,
    AddRewards,
    CallsOf,
    EventsOf,
    RewardsOf,
    Stored,
)
from lightning_core.api.bounds import check_all, check_calls
from lightning_core.api.routing import JsonRoute, reply
from lightning_core.errors import ScopeError
from lightning_core.stores.base import Store
from lightning_core.types import Call

router = APIRouter(tags=["records"], route_class=JsonRoute)
RolloutId = Annotated[
    list[str],
    Query(min_length=1, max_length=MOST_IDS, description="Once for each rollout that is asked for."),
]


@router.post("/rewards", response_model=Stored)
async def add_rewards(body: AddRewards, caller: Worker) -> Response:
    """Give rewards: a worker to attempts that it holds, an admin to any, as a judge does afterwards."""
    check_all("rewards", body.rewards)
    await caller.check_addresses(((one.rollout_id, one.attempt) for one in body.rewards), body.keys)
    await caller.store.add_rewards(body.rewards, running=body.running or not caller.admin)
    return reply({"stored": len(body.rewards)})


@router.get("/rewards", response_model=RewardsOf)
async def get_rewards(rollout_id: RolloutId, caller: Client, skip_unknown: bool = False) -> Response:
    """The rewards of rollouts, in the order they were given."""
    ids = await caller.known(rollout_id, skip_unknown=skip_unknown)
    return reply({"rewards": await caller.store.get_rewards(ids)})


@router.post("/events", response_model=Stored)
async def add_events(body: AddEvents, caller: Worker) -> Response:
    """Record tool runs and spans of attempts. One under a known id takes the place of the earlier."""
    check_all("events", body.events)
    await caller.check_addresses(((one.rollout_id, one.attempt) for one in body.events), body.keys)
    await caller.store.add_events(body.events)
    return reply({"stored": len(body.events)})


@router.get("/events", response_model=EventsOf)
async def get_events(rollout_id: RolloutId, caller: Client, skip_unknown: bool = False) -> Response:
    """The tool runs and spans of rollouts, by the time they started."""
    ids = await caller.known(rollout_id, skip_unknown=skip_unknown)
    return reply({"events": await caller.store.get_events(ids)})


@router.post("/calls", response_model=Stored)
async def add_calls(body: AddCalls, caller: Worker) -> Response:
    """Record calls that the app made elsewhere: each says where, by `endpoint`, and is never trained on.

    The calls that the policy answered are recorded by the gateway, with the engine's own token ids. Only an
    admin may write such a call, as an import does.
    """
    check_calls(body.calls, seen_only=not caller.admin)
    await caller.check_addresses(((one.rollout_id, one.attempt) for one in body.calls), body.keys)
    if not caller.admin:
        await _check_new_ids(caller.store, body.calls)
    for call in body.calls:
        await caller.store.add_call(call, running=body.running or not caller.admin)
    return reply({"stored": len(body.calls)})


async def _check_new_ids(store: Store, calls: list[Call]) -> None:
    """Raise ScopeError for an id under which the gateway has recorded a call."""
    kept = await store.get_calls({str(call.rollout_id) for call in calls})
    recorded = {
        (rollout_id, call.id) for rollout_id, of in kept.items() for call in of if call.endpoint is None
    }
    for call in calls:
        if (call.rollout_id, call.id) in recorded:
            raise ScopeError(
                f"call {call.id!r} of rollout {call.rollout_id!r} was recorded by the gateway; "
                "give this one an id of its own"
            )


@router.get("/calls", response_model=CallsOf)
async def get_calls(rollout_id: RolloutId, caller: Client, skip_unknown: bool = False) -> Response:
    """The calls of rollouts, by the time they started, with their token ids as arrays of numbers."""
    ids = await caller.known(rollout_id, skip_unknown=skip_unknown)
    return reply({"calls": await caller.store.get_calls(ids)})
