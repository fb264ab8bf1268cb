"""The records of rollouts: calls, rewards, and events, which are tool runs and spans."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Annotated, Final

from fastapi import APIRouter, Query
from pydantic import Field, JsonValue
from starlette.responses import Response

from lightning_core.api.access import Admin, Client, Worker
from lightning_core.api.fields import KEY_EXAMPLE, FieldError, Keys, Some, answer, example
from lightning_core.api.routing import JsonRoute, reply
from lightning_core.errors import ScopeError
from lightning_core.records.types import Call, Credited, Event, Record, Reward
from lightning_core.stores.base import Store

router = APIRouter(tags=["records"], route_class=JsonRoute)
MOST_IDS: Final = 1_000
"""In one request."""
RolloutId = Annotated[
    list[str],
    Query(min_length=1, max_length=MOST_IDS, description="Once for each rollout that is asked for."),
]


# bodies ---------------------------------------------------------------------------------------------
_AT: Final[dict[str, JsonValue]] = {"rollout_id": "r1", "attempt": 1}
_TIMES: Final[dict[str, JsonValue]] = {"started_at": 1750000000.0, "ended_at": 1750000001.5}
_LAST: Final = "Of each rollout those of its last attempt."
_LARGEST_ID: Final = 2**32 - 1


class AddRewards(Record):
    """Rewards to record, all or none."""

    model_config = example(
        rewards=[{**_AT, "value": 0.5, "id": "first", "reason": "half of it is right"}], keys=[KEY_EXAMPLE]
    )
    rewards: Some[Reward]
    """One with an `id` counts once, however often it is sent."""
    keys: Keys = Field(default_factory=list)
    """Keys of the leases that they belong to; with an admin's token they are not needed."""
    running: bool = False
    """Refuse those of attempts that have ended. Those of workers are refused then in any case."""


class AddEvents(Record):
    """Tool runs and spans to record, all or none."""

    model_config = example(
        events=[{"kind": "tool", "id": "t1", **_AT, "agent": "writer", "name": "search", **_TIMES}],
        keys=[KEY_EXAMPLE],
    )
    events: Some[Event]
    keys: Keys = Field(default_factory=list)
    """As for rewards."""


class AddCalls(Record):
    """Calls to record that the app made elsewhere than at the gateway, which records its own."""

    model_config = example(
        calls=[
            {
                "id": "c1",
                **_AT,
                "agent": "critic",
                "trained": False,
                "endpoint": "https://models.example/v1",
                "model": "large",
                "choices": [{"message": {"role": "assistant", "content": "Yes."}}],
                **_TIMES,
            }
        ],
        keys=[KEY_EXAMPLE],
    )
    calls: Some[Call]
    keys: Keys = Field(default_factory=list)
    """As for rewards."""
    running: bool = False
    """As for rewards."""


class AddCredited(Record):
    """The credit of transitions, all or none."""

    model_config = example(credited=[{**_AT, "call_id": "c1", "advantage": 0.5, "weight": 0.001}])
    credited: Some[Credited]


Stored = answer(
    "Stored",
    "Records that were added.",
    stored=(int, "How many the request had; those that were known already among them."),
)
CallsOf = answer("CallsOf", "Calls.", calls=(dict[str, list[Call]], _LAST))
RewardsOf = answer("RewardsOf", "Rewards.", rewards=(dict[str, list[Reward]], _LAST))
EventsOf = answer("EventsOf", "Events.", events=(dict[str, list[Event]], _LAST))
CreditedOf = answer("CreditedOf", "What was given.", credited=(dict[str, list[Credited]], _LAST))


# routes ---------------------------------------------------------------------------------------------
@router.post("/rewards", response_model=Stored)
async def add_rewards(body: AddRewards, caller: Worker) -> Response:
    """Give rewards: a worker to attempts that it holds, an admin to any, as a judge does afterwards."""
    for place, reward in enumerate(body.rewards):
        if not math.isfinite(reward.value):
            raise FieldError(f"rewards[{place}].value", f"is {reward.value}, which is no finite number")
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
    await caller.check_addresses(((one.rollout_id, one.attempt) for one in body.events), body.keys)
    await caller.store.add_events(body.events)
    return reply({"stored": len(body.events)})


@router.get("/events", response_model=EventsOf)
async def get_events(rollout_id: RolloutId, caller: Client, skip_unknown: bool = False) -> Response:
    """The tool runs and spans of rollouts, by the time they started."""
    ids = await caller.known(rollout_id, skip_unknown=skip_unknown)
    return reply({"events": await caller.store.get_events(ids)})


@router.post("/credited", response_model=Stored)
async def add_credited(body: AddCredited, caller: Admin) -> Response:
    """Record which advantages a trainer gave the transitions of a step. One under a known rollout, attempt,
    call and choice takes the place of the earlier."""
    await caller.check_addresses(((one.rollout_id, one.attempt) for one in body.credited), [])
    await caller.store.add_credited(body.credited)
    return reply({"stored": len(body.credited)})


@router.get("/credited", response_model=CreditedOf)
async def get_credited(rollout_id: RolloutId, caller: Client, skip_unknown: bool = False) -> Response:
    """Advantage, value and weight in the loss of the transitions of rollouts, by call and choice."""
    ids = await caller.known(rollout_id, skip_unknown=skip_unknown)
    return reply({"credited": await caller.store.get_credited(ids)})


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


def check_calls(calls: Sequence[Call], *, seen_only: bool) -> None:
    """Raise FieldError for a call that can't be stored. With `seen_only` none may claim to be the policy's:
    the token ids that are trained on come from the gateway alone."""
    for place, call in enumerate(calls):
        name = f"calls[{place}]"
        _check_ids(f"{name}.prompt_ids", call.prompt_ids)
        for index, choice in enumerate(call.choices):
            _check_ids(f"{name}.choices[{index}].completion_ids", choice.completion_ids)
        if seen_only and not call.endpoint:
            raise FieldError(
                f"{name}.endpoint",
                "is missing: say where the call went; the policy's calls are recorded by the gateway",
            )


def _check_ids(name: str, ids: Iterable[int] | None) -> None:
    for place, token in enumerate(ids or ()):
        if not 0 <= token <= _LARGEST_ID:
            raise FieldError(f"{name}[{place}]", f"is {token}; a token id is an integer from 0 to 2**32 - 1")
