"""Microsoft Agent Framework for Lightning: one added line, and every call knows which agent made it.

    agent = attach(build_agent())

The framework is not imported here: whoever has an agent to attach has imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from lightning_core import hookimpl
from lightning_core.tracing.importing import once_imported
from lightning_core.tracing.scope import enter_order
from lightning_core.types import UNNAMED, Who

FRAMEWORK = "agent_framework"
T = TypeVar("T")

_at_work: ContextVar[Who | None] = ContextVar("lightning_agent_framework", default=None)


@hookimpl
def lightning_who() -> Who | None:
    """The agent at work in this context."""
    return _at_work.get()


@hookimpl
def lightning_install() -> Callable[[], None]:
    """Every agent of the framework, from its import on."""
    return once_imported("agent_framework", _wrap)


@hookimpl
def lightning_attach(target: Any) -> Any:
    """An agent or a workflow: the same object."""
    framework = sys.modules.get("agent_framework")
    if framework is None or not isinstance(target, framework.BaseAgent | framework.Workflow):
        return None
    return attach(target)


def attach(target: T) -> T:
    """Name the calls of this agent and of all others in the process; returns it. Twice does no harm."""
    from lightning_agent_framework.agents import install

    install()
    return target


def detach() -> None:
    """Take back what `attach` has changed in the framework; if nothing is attached, do nothing."""
    if "lightning_agent_framework.agents" in sys.modules:
        sys.modules["lightning_agent_framework.agents"].uninstall()


@contextmanager
def working(name: str | None) -> Iterator[None]:
    """Gives the calls made inside to this agent."""
    token = _at_work.set(Who(name or UNNAMED, enter_order(), FRAMEWORK))
    try:
        yield
    finally:
        _at_work.reset(token)


def _wrap() -> Callable[[], None]:
    from lightning_agent_framework.agents import wrap

    return wrap()
