"""Which agent is at work in this context.

CrewAI tells its hooks when a call of the model begins, but not when it ends, nor which agent a tool, a
guardrail or the conversion of an answer works for. So the methods through which agents are set to work
are wrapped: those of a task, which knows its agent, and `execute_task` and `kickoff` of the agents
themselves. Each such *step* names the calls made in it, and of nested steps the innermost. The step is
a context variable, which CrewAI hands on to the threads in which it runs tasks and tools.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from lightning_core.records.types import Who
from lightning_core.tracing.scope import enter_order
from lightning_crewai.naming import FRAMEWORK, agent_name


@dataclass(frozen=True, slots=True)
class Step:
    """An agent doing its work, from here inwards."""

    worker: Any
    """The agent itself."""
    who: Who


_step: ContextVar[Step | None] = ContextVar("lightning_crewai_step", default=None)


def current_step() -> Step | None:
    """The innermost step of this context, if any."""
    return _step.get()


def in_task(original: Callable[..., Any], users: list[str]) -> Callable[..., Any]:
    """For `Task.execute_sync`, and for `execute_async`, whose thread copies the context made here."""

    def execute(task: Any, agent: Any = None, *args: Any, **kwargs: Any) -> Any:
        with _working(agent or task.agent, users):
            return original(task, agent, *args, **kwargs)

    return execute


def in_async_task(original: Callable[..., Awaitable[Any]], users: list[str]) -> Callable[..., Awaitable[Any]]:
    """For `Task.aexecute_sync`."""

    async def execute(task: Any, agent: Any = None, *args: Any, **kwargs: Any) -> Any:
        with _working(agent or task.agent, users):
            return await original(task, agent, *args, **kwargs)

    return execute


def in_agent(original: Callable[..., Any], users: list[str]) -> Callable[..., Any]:
    """For `execute_task` and `kickoff` of an agent."""

    def work(agent: Any, *args: Any, **kwargs: Any) -> Any:
        with _working(agent, users):
            return original(agent, *args, **kwargs)

    return work


def in_async_agent(
    original: Callable[..., Awaitable[Any]], users: list[str]
) -> Callable[..., Awaitable[Any]]:
    """For `aexecute_task` and `kickoff_async` of an agent."""

    async def work(agent: Any, *args: Any, **kwargs: Any) -> Any:
        with _working(agent, users):
            return await original(agent, *args, **kwargs)

    return work


@contextmanager
def _working(worker: Any, users: list[str]) -> Iterator[None]:
    """A new step, unless the agent is only calling on its own: a task on its agent, or `super()`."""
    before = _step.get()
    if not users or worker is None or (before is not None and before.worker is worker):
        yield
        return
    _step.set(Step(worker, Who(agent_name(worker), enter_order(), FRAMEWORK)))
    try:
        yield
    finally:
        _step.set(before)  # no token: what was never finished may be closed in another context
