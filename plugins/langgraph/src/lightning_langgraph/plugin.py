"""The hooks: who is calling, and attaching a graph. Imports LangChain only if the app already has."""

from __future__ import annotations

import sys
from typing import Any

from lightning_core.hookspecs import hookimpl
from lightning_core.types import Who
from lightning_langgraph.runs import innermost


@hookimpl
def lightning_who() -> Who | None:
    """The node or agent whose run is in this context."""
    config = sys.modules.get("langchain_core.runnables.config")
    if config is None:
        return None
    return innermost(config.var_child_runnable_config.get() or {})


@hookimpl
def lightning_attach(target: Any) -> Any:
    """A compiled graph or any other Runnable, with the callback added."""
    base = sys.modules.get("langchain_core.runnables.base")
    if base is None or not isinstance(target, base.Runnable):
        return None
    from lightning_langgraph.callback import LightningCallback

    return target.with_config(callbacks=[LightningCallback()])
