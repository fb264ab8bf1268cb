"""Pydantic AI for Lightning: one added line, and every call knows which agent made it, in which rollout.

    agent = attach(build_agent())

Pydantic AI is not imported here: whoever has an agent to attach has imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from lightning_core import hookimpl
from lightning_core.tracing.scope import enter_order
from lightning_core.types import UNNAMED, Who

FRAMEWORK = "pydantic_ai"
T = TypeVar("T")

_at_work: ContextVar[Who | None] = ContextVar("lightning_pydantic_ai", default=None)


@hookimpl
def lightning_who() -> Who | None:
    """The agent at work in this context."""
    return _at_work.get()


@hookimpl
def lightning_attach(target: Any) -> Any:
    """An agent of Pydantic AI: the same object."""
    framework = sys.modules.get("pydantic_ai.agent")
    return attach(target) if framework and isinstance(target, framework.AbstractAgent) else None


def attach(agent: T) -> T:
    """Name the calls of this agent and of all others in the process; returns it. Twice does no harm."""
    from lightning_pydantic_ai.agents import install

    install()
    return agent


def detach() -> None:
    """Take back what `attach` has changed in Pydantic AI; if nothing is attached, do nothing."""
    if "lightning_pydantic_ai.agents" in sys.modules:
        sys.modules["lightning_pydantic_ai.agents"].uninstall()


@contextmanager
def working(name: str | None) -> Iterator[None]:
    """Gives the calls made inside to this agent."""
    token = _at_work.set(Who(name or UNNAMED, enter_order(), FRAMEWORK))
    try:
        yield
    finally:
        _at_work.reset(token)
