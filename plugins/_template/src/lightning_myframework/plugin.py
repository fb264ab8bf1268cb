"""The hooks: who is calling, and attaching an agent. Never imports the framework itself."""

from __future__ import annotations

import sys
from typing import Any

from lightning_core.hookspecs import hookimpl
from lightning_core.records.types import Who
from lightning_myframework.adapter import attach, current


@hookimpl
def lightning_who() -> Who | None:
    """The agent at work in this context."""
    return current()


@hookimpl
def lightning_attach(target: Any) -> Any:
    """An agent of the framework: the same object."""
    framework = sys.modules.get("myframework")
    if framework is None or not isinstance(target, framework.Agent):
        return None
    return attach(target)
