"""Rewards that an app gives while it runs: noted in the rollout's scope, stored when its attempt ends.

From any thread or task of the rollout, as the scope is inherited. A reward about a call names that call by
the id of its reply, which the app was given with it: never by time, never by order.
"""

from __future__ import annotations

import logging
import reprlib
from collections.abc import Iterator, Mapping
from decimal import Decimal
from numbers import Real

from lightning_core.errors import RewardError
from lightning_core.records.types import REWARD_RANGE, Reward, is_reward
from lightning_core.texts.json_text import whole
from lightning_core.tracing.scope import current_scope

log = logging.getLogger(__name__)

_ID_FIELDS = ("provider_response_id", "response_id", "last_response_id", "tool_call_id", "call_id", "id")
"""Where a reply, a tool call or its answer keeps the id: Pydantic AI, a model response and a result of the
OpenAI Agents SDK, messages that answer a tool call, and the SDKs of OpenAI and Anthropic."""
_NO_REPLY = ("lc_run-", "run-", "__fake_id__")
"""Ids that frameworks make up for a reply whose own they did not keep: LangChain, the OpenAI Agents SDK."""


def reward(
    value: object, *, agent: str | None = None, call: object = None, reason: str | None = None
) -> None:
    """Give a reward to the rollout that runs here; outside a rollout nothing happens.

    Without `agent` and `call` it is the final reward of the whole rollout: the last one given counts, and
    what the function given to `Trainer.fit` returns comes last, unless it returns None. With `agent` it is
    the final reward of that agent, in place of the rollout's. With `call` it is an intermediate reward about
    that call: its reply as the SDK or the framework gave it, the reply's id, or a tool call that it asks for.

    Raises RewardError for a value that is not a finite number from -1e9 to 1e9, and for a `call` that bears
    no such id.
    """
    scope = current_scope()
    if scope is None:
        log.info("reward(%s) outside a rollout is ignored", reprlib.repr(value))
        return
    number = as_reward(value)
    if number is None:
        raise RewardError(
            f"reward({reprlib.repr(value)}) in rollout {scope.rollout_id!r} is not {REWARD_RANGE}: give one "
            "such as 1.0"
        )
    if agent is not None and call is not None:
        raise RewardError(
            f"reward(agent={agent!r}, call=...) is addressed twice: give call alone for an intermediate "
            "reward about that call, or agent alone for the final reward of that agent"
        )
    if agent == "":
        raise RewardError("reward(agent='') names no agent; give its name, or leave the argument out")
    scope.rewards.append(
        Reward(
            rollout_id=scope.rollout_id,
            attempt=scope.attempt,
            value=number,
            kind="final" if call is None else "intermediate",
            agent=None if agent is None else whole(agent),
            call_id=None if call is None else _id_of(call),
            reason=reason,
        )
    )


def as_reward(value: object) -> float | None:
    """A float that can be a reward, from a bool, int, float or a scalar of numpy or torch; None for anything
    else."""
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()
    if not isinstance(value, Real | Decimal):
        return None
    try:
        number = float(value)
    except (OverflowError, ValueError):
        return None
    return number if is_reward(number) else None


def _id_of(call: object) -> str:
    """The id of a reply or of a tool call, from its object in any form, or as it is."""
    for found in (call, *_ids(call)):
        if isinstance(found, str) and found and not found.startswith(_NO_REPLY):
            return found
    raise RewardError(
        f"reward(call={reprlib.repr(call)}): this {type(call).__name__} bears no id of a reply; give the "
        "reply as the SDK returned it, its id, or the id of a tool call that it asks for (docs/rewards.md "
        "lists what the replies of each framework hold)"
    )


def _ids(call: object) -> Iterator[object]:
    """Where the id may be, the surest place first."""
    metadata = getattr(call, "response_metadata", None)
    if isinstance(metadata, Mapping):  # LangChain: the message's own id may be that of its run
        yield metadata.get("id")
    fields = call if isinstance(call, Mapping) else None
    for name in _ID_FIELDS:
        yield fields.get(name) if fields is not None else getattr(call, name, None)
    for asked in getattr(call, "tool_calls", None) or ():  # a streamed message of LangChain
        yield asked.get("id") if isinstance(asked, Mapping) else getattr(asked, "id", None)
