"""Which agent is at work in this context.

AutoGen has no callback for it, so the three methods through which agents are set to work are wrapped:
`on_messages` and `on_messages_stream` of AgentChat's agents, and `on_message`, by which the runtime hands
a message to whatever it hosts, such as the manager of a group chat. Each such *step* names the calls
made in it, and of nested steps the innermost. The step is a context variable, so parallel branches,
parallel tools and concurrent rollouts each see their own.

A stream runs in its consumer's context. Its step is therefore set only while the stream is being asked
for its next item, and what the consumer does in between is not the agent's. The items tell what became
of the agent's tools (see `tools`).
"""

from __future__ import annotations

import re
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from lightning_autogen.tools import Tools
from lightning_core.records.types import Who
from lightning_core.tracing.scope import enter_order

FRAMEWORK = "autogen"
_TEAM_ID = re.compile(r"_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class Step:
    """An agent doing its work, from here inwards."""

    worker: Any
    """The agent itself."""
    who: Who
    tools: Tools


_step: ContextVar[Step | None] = ContextVar("lightning_autogen_step", default=None)


def current_step() -> Step | None:
    """The innermost step of this context, if any."""
    return _step.get()


def find_host() -> Who | None:
    """The agent to which AutoGen's runtime handed the message being handled here, if any.

    This is known without any wrapper, but not since when it is at work: a block around it wins.
    """
    core = sys.modules.get("autogen_core")
    if core is None or not hasattr(core, "MessageHandlerContext"):  # absent in the midst of its import
        return None
    try:
        return Who(host_name(core.MessageHandlerContext.agent_id().type), framework=FRAMEWORK)
    except RuntimeError:  # not in a handler
        return None


def host_name(kind: str) -> str:
    """An agent type as a name: a team registers its members as "<name>_<id of the team>"."""
    return _TEAM_ID.sub("", kind) or kind


def in_on_messages(
    original: Callable[..., Awaitable[Any]], users: list[str]
) -> Callable[..., Awaitable[Any]]:
    async def on_messages(agent: Any, *args: Any, **kwargs: Any) -> Any:
        if not users:
            return await original(agent, *args, **kwargs)
        with _inside(_enter(agent, agent.name)):
            return await original(agent, *args, **kwargs)

    return on_messages


def in_on_message(original: Callable[..., Awaitable[Any]], users: list[str]) -> Callable[..., Awaitable[Any]]:
    async def on_message(host: Any, *args: Any, **kwargs: Any) -> Any:
        if not users:
            return await original(host, *args, **kwargs)
        with _inside(_enter(host, host_name(host.id.type))):
            return await original(host, *args, **kwargs)

    return on_message


def in_on_messages_stream(
    original: Callable[..., AsyncGenerator[Any]], users: list[str]
) -> Callable[..., AsyncGenerator[Any]]:
    async def on_messages_stream(agent: Any, *args: Any, **kwargs: Any) -> AsyncGenerator[Any]:
        step = _enter(agent, agent.name) if users else None
        async with aclosing(original(agent, *args, **kwargs)) as stream:
            while True:
                with _inside(step):
                    try:
                        item = await anext(stream)
                    except StopAsyncIteration:
                        return
                if step is not None:
                    step.tools.notice(item)
                yield item

    return on_messages_stream


def _enter(worker: Any, name: str) -> Step:
    """A new step, unless the agent is only calling on its own: `super()`, or one of its other methods."""
    step = _step.get()
    if step is not None and step.worker is worker:
        return step
    tools = Tools(worker, FRAMEWORK, around=step.tools if step is not None else None)
    return Step(worker, Who(name, enter_order(), FRAMEWORK), tools)


@contextmanager
def _inside(step: Step | None) -> Iterator[None]:
    if step is None:
        yield
        return
    before = _step.get()
    _step.set(step)
    try:
        yield
    finally:
        _step.set(before)  # no token: what was never finished may be closed in another context
