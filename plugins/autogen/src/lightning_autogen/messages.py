"""A message belongs to the rollout that sent it.

AutoGen's runtime handles messages in tasks of its own, which inherit the context in which the runtime was
*started*. A team that brings its own runtime starts it within `run`, so all is well. A runtime that an app
starts once and shares would put every call into the rollout that was running then, or into none. So each
message notes the context of its sender, and is handled in that rollout: from the task that a rollout gives
to its team, along all messages that follow from it, and never longer than the rollout runs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import copy_context
from typing import Any

from lightning_core.tracing.scope import rollout_of

_SENDER = "_lightning_sender"


def note_sender(original: Callable[..., None], users: list[str]) -> Callable[..., None]:
    """For the `__init__` of a message's envelope, which is made where the message is sent."""

    def __init__(envelope: Any, *args: Any, **kwargs: Any) -> None:
        original(envelope, *args, **kwargs)
        if users:
            setattr(envelope, _SENDER, copy_context())

    return __init__


def in_senders_rollout(
    original: Callable[..., Awaitable[None]], users: list[str]
) -> Callable[..., Awaitable[None]]:
    """For the runtime's method that hands an envelope's message to its receivers, in a task of its own."""

    async def handle(runtime: Any, envelope: Any) -> None:
        sender = getattr(envelope, _SENDER, None)
        if not users or sender is None:
            return await original(runtime, envelope)
        with rollout_of(sender):
            return await original(runtime, envelope)

    return handle
