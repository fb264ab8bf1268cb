"""The hooks: who is calling, and attaching a crew. Never imports CrewAI itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lightning_core.hookspecs import hookimpl
from lightning_core.records.types import Who
from lightning_crewai.attaching import attach, install, takes
from lightning_crewai.steps import current_step


@hookimpl
def lightning_who() -> Who | None:
    """The agent at work in this context."""
    step = current_step()
    return step.who if step is not None else None


@hookimpl
def lightning_install() -> Callable[[], None]:
    """Every agent of the framework, from its import on."""
    return install()


@hookimpl
def lightning_attach(target: Any) -> Any:
    """A crew, a flow or an agent: the same object."""
    return attach(target) if takes(target) else None
