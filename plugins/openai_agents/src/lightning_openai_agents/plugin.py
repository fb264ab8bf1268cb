"""The hooks: who is calling, and attaching an agent. Imports the SDK only if the app already has."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from lightning_core.hookspecs import hookimpl
from lightning_core.records.types import Who
from lightning_openai_agents.installing import attach, find_sdk, install, is_installed, uninstall
from lightning_openai_agents.naming import find_who


@hookimpl
def lightning_who() -> Who | None:
    """The agent whose span is current in this context."""
    sdk = find_sdk()
    return find_who(sdk.get_current_span()) if sdk is not None else None


@hookimpl
def lightning_install() -> Callable[[], None] | None:
    """Every agent of the SDK, from its import on."""
    if is_installed():
        return None
    install()
    return uninstall


@hookimpl
def lightning_attach(target: Any) -> Any:
    """An agent, unchanged; the provider that names it and those it works with is in place."""
    if find_sdk() is None or not isinstance(target, sys.modules["agents"].Agent):
        return None
    return attach(target)
