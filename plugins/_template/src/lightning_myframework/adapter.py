"""Which agent is at work in this context, told by the hooks that the framework calls around its work."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from lightning_core.records.types import UNNAMED, Who
from lightning_core.tracing.scope import enter_order
from lightning_core.tracing.tools import report_tool

FRAMEWORK = "myframework"
T = TypeVar("T")

_at_work: ContextVar[Who | None] = ContextVar("lightning_myframework_at_work", default=None)


def current() -> Who | None:
    """The innermost agent at work in this context, if any."""
    return _at_work.get()


def attach(agent: T) -> T:
    """Name the calls of this agent and of those that follow it; returns the agent. Twice does no harm."""
    following: Any = agent
    while following is not None:
        if not any(isinstance(hooks, LightningHooks) for hooks in following.hooks):
            following.hooks.append(LightningHooks())
        following = following.then
    return agent


class LightningHooks:
    """Hooks that the framework calls around an agent's work. They change nothing that the app sees."""

    async def around_call(self, agent: Any, proceed: Callable[[], Awaitable[Any]]) -> Any:
        """A call of the model."""
        with _working(agent.name):
            return await proceed()

    async def around_tool(self, agent: Any, call: Any, proceed: Callable[[], Awaitable[Any]]) -> Any:
        """A run of a tool, whose own calls are the agent's."""
        run: dict[str, Any] = {
            "agent": agent.name or UNNAMED,
            "framework": FRAMEWORK,
            "arguments": call.function.arguments,
            "tool_call_id": call.id,
            "started_at": time.time(),
        }
        try:
            with _working(agent.name):
                result = await proceed()
        except Exception as error:
            report_tool(call.function.name, error=error, **run)
            raise
        report_tool(call.function.name, result=result, **run)
        return result


@contextmanager
def _working(name: str | None) -> Iterator[None]:
    token = _at_work.set(Who(name or UNNAMED, enter_order(), FRAMEWORK))
    try:
        yield
    finally:
        _at_work.reset(token)
