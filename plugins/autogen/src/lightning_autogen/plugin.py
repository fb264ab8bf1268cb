"""The hooks: who is calling, and attaching a team. Never imports AutoGen itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lightning_autogen.attaching import attach, install, takes
from lightning_autogen.steps import current_step, find_host
from lightning_core.hookspecs import hookimpl
from lightning_core.records.types import Who


@hookimpl
def lightning_who() -> Who | None:
    """The agent at work in this context."""
    step = current_step()
    return step.who if step is not None else find_host()


@hookimpl
def lightning_install() -> Callable[[], None]:
    """Every agent of the framework, from its import on."""
    return install()


@hookimpl
def lightning_attach(target: Any) -> Any:
    """A team, an agent or a runtime: the same object."""
    return attach(target) if takes(target) else None
