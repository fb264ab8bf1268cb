"""LangGraph for Lightning: one added line, and every call knows which node or agent made it.

    graph = build_graph().with_config(callbacks=[LightningCallback()])

LangChain is imported when `LightningCallback` is first used, not before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_langgraph.callback import LightningCallback

__all__ = ["LightningCallback"]


def __getattr__(name: str) -> Any:
    if name == "LightningCallback":
        from lightning_langgraph.callback import LightningCallback

        return LightningCallback
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
