"""The hooks: who is calling, and attaching a graph. Imports LangChain only if the app already has."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from lightning_core.hookspecs import hookimpl
from lightning_core.records.types import Who
from lightning_core.tracing.importing import once_imported
from lightning_langgraph.runs import innermost


@hookimpl
def lightning_who() -> Who | None:
    """The node or agent whose run is in this context."""
    config = sys.modules.get("langchain_core.runnables.config")
    if config is None:
        return None
    return innermost(config.var_child_runnable_config.get() or {})


@hookimpl
def lightning_install() -> Callable[[], None]:
    """Every Runnable, from LangChain's import on: graphs need no callback passed."""
    return once_imported("langchain_core.runnables.config", _callback_for_all)


def _callback_for_all() -> Callable[[], None]:
    """LangChain adds it to each outermost run that has none of its kind; what it adds is inherited."""
    from langchain_core.tracers import context

    from lightning_langgraph.callback import LightningCallback

    callback = LightningCallback()
    found: ContextVar[Any] = ContextVar("lightning_langgraph_callback", default=callback)
    context.register_configure_hook(found, inheritable=True, handle_class=LightningCallback)

    def take_back() -> None:
        hooks = getattr(context, "_configure_hooks", [])
        hooks[:] = [hook for hook in hooks if hook[0] is not found]

    return take_back


@hookimpl
def lightning_attach(target: Any) -> Any:
    """A compiled graph or any other Runnable, with the callback added."""
    base = sys.modules.get("langchain_core.runnables.base")
    if base is None or not isinstance(target, base.Runnable):
        return None
    from lightning_langgraph.callback import LightningCallback

    return target.with_config(callbacks=[LightningCallback()])
