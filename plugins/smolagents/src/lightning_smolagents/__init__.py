"""smolagents for Lightning: one added line, and every call knows which agent made it, in which rollout.

    agent = attach(build_agent())

smolagents is not imported here: whoever has an agent to attach has imported it.
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

FRAMEWORK = "smolagents"
T = TypeVar("T")

_at_work: ContextVar[Who | None] = ContextVar("lightning_smolagents", default=None)


@hookimpl
def lightning_who() -> Who | None:
    """The agent at work in this context."""
    return _at_work.get()


@hookimpl
def lightning_attach(target: Any) -> Any:
    """An agent of smolagents: the same object."""
    framework = sys.modules.get("smolagents.agents")
    return attach(target) if framework and isinstance(target, framework.MultiStepAgent) else None


def attach(agent: T) -> T:
    """Name the calls of this agent and of all others in the process; returns it. Twice does no harm."""
    from lightning_smolagents.agents import install

    install()
    return agent


def detach() -> None:
    """Take back what `attach` has changed in smolagents; if nothing is attached, do nothing."""
    if "lightning_smolagents.agents" in sys.modules:
        sys.modules["lightning_smolagents.agents"].uninstall()


@contextmanager
def working(name: str | None) -> Iterator[None]:
    """Gives the calls made inside to this agent."""
    token = _at_work.set(Who(name or UNNAMED, enter_order(), FRAMEWORK))
    try:
        yield
    finally:
        _at_work.reset(token)
