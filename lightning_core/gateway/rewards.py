"""`POST /rollouts/{rollout_id}/rewards`: rewards from a program in any language, stored before the answer.

    curl "$LIGHTNING_REWARD_URL" -H "Authorization: Bearer $OPENAI_API_KEY" -d '{"value": 1.0}'

A body is one reward or a list of them, stored all or none. They belong to the attempt of the token: one that
has ended takes no more, as the rollout may have been judged and trained on already. A reward with an "id"
counts once however often it is sent, so that a client may send it again when it got no answer.
"""

from __future__ import annotations

import logging
import time
from types import MappingProxyType
from typing import Any, Final

from starlette.types import Receive, Scope, Send

from lightning_core.dialects.strict import invalid, missing, short
from lightning_core.errors import ApiError, DataError, GatewayError, LeaseLostError, NotFoundError
from lightning_core.gateway.access import Access, Caller
from lightning_core.gateway.errors import api_error_of
from lightning_core.gateway.wire import read_body, read_content, send_json
from lightning_core.records.types import REWARD_RANGE, Reward
from lightning_core.stores.base import Store
from lightning_core.texts.json_text import JsonError, read_json
from lightning_core.tracing.rewards import as_reward

log = logging.getLogger(__name__)

MOST: Final = 1_000
"""Rewards in one request."""
_TEXTS: Final = MappingProxyType({"agent": 500, "call": 500, "reason": 10_000, "id": 500})
"""The fields that are texts, each with its most characters."""
_EXAMPLE: Final = (
    'send {"value": 1.0}, with "agent", "call", "reason" and "id" if you like, or a list of such'
)


class Rewards:
    """The endpoint, as an ASGI application."""

    def __init__(self, access: Access, store: Store) -> None:
        self._access = access
        self._store = store

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            caller = self._access.admit(scope)
            content = await read_body(receive)
            if content is None:
                return
            rewards = await read_content(content, lambda content: read_rewards(content, caller))
            await self._keep(rewards)
        except GatewayError as error:
            refusal = api_error_of(error)
            await send_json(send, refusal.body(), status=refusal.status)
        else:
            await send_json(send, {"stored": len(rewards)})

    async def _keep(self, rewards: list[Reward]) -> None:
        try:
            await self._store.add_rewards(rewards, running=True)
        except NotFoundError as error:
            raise ApiError(str(error), status=404, code="no_rollout") from error
        except LeaseLostError as error:
            raise ApiError(str(error), status=409, code="attempt_ended") from error
        except DataError as error:
            raise ApiError(str(error), code="invalid_value") from error
        except Exception as error:
            log.exception("%d rewards could not be stored", len(rewards))
            raise ApiError(
                f"the rewards could not be stored: {error}; send them again",
                status=503,
                code="store_failed",
                kind="server_error",
            ) from error


def read_rewards(content: bytes, caller: Caller) -> list[Reward]:
    """The rewards in a body. Raises ApiError that names the first field that can't be used."""
    try:
        body = read_json(content)
    except JsonError as error:
        raise ApiError(
            f"the request body can't be read as JSON: {error}; {_EXAMPLE}", code="invalid_json"
        ) from error
    if isinstance(body, list):
        if len(body) > MOST:
            raise ApiError(
                f"the body holds {len(body)} rewards; send at most {MOST} in one request",
                status=413,
                code="too_large",
            )
        return [_reward(item, f"[{index}].", caller) for index, item in enumerate(body)]
    return [_reward(body, "", caller)]


def _reward(item: Any, place: str, caller: Caller) -> Reward:
    if not isinstance(item, dict):
        raise ApiError(
            f"{place.rstrip('.') or 'the body'} is {short(item)}, not a reward; {_EXAMPLE}",
            code="invalid_json",
        )
    for name in item:
        if name not in ("value", *_TEXTS):
            raise ApiError(
                f"{place + name!r} is not a field of a reward; {_EXAMPLE}",
                code="unknown_parameter",
                param=place + name,
            )
    agent, call, reason, own_id = (_text(item, name, place) for name in _TEXTS)
    if agent is not None and call is not None:
        raise invalid(
            f"{place}agent",
            f"{place}agent and {place}call are both given; give call alone for an intermediate reward about "
            "that call, or agent alone for the final reward of that agent",
        )
    return Reward(
        rollout_id=caller.rollout_id or "",
        attempt=caller.attempt or 0,
        value=_value(item, place),
        kind="final" if call is None else "intermediate",
        agent=agent,
        call_id=call,
        reason=reason,
        created_at=time.time(),
        id=own_id,
    )


def _value(item: dict[str, Any], place: str) -> float:
    if "value" not in item:
        raise missing(f"{place}value")
    number = as_reward(item["value"])
    if number is None:
        raise invalid(f"{place}value", f"{place}value must be {REWARD_RANGE}, not {short(item['value'])}")
    return number


def _text(item: dict[str, Any], name: str, place: str) -> str | None:
    value = item.get(name)
    if value is not None and (not isinstance(value, str) or not value):
        raise invalid(place + name, f"{place + name} must be a non-empty string, not {short(value)}")
    if value is not None and len(value) > _TEXTS[name]:
        raise invalid(
            place + name,
            f"{place + name} has {len(value)} characters; send at most {_TEXTS[name]}",
        )
    return value
