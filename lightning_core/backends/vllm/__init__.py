"""vLLM as the engine: tokens in, tokens out, from one server or several.

Imported when first used: inside vLLM's workers only `worker` is.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_core.backends.vllm.command import ServerOptions as ServerOptions
    from lightning_core.backends.vllm.engine import VllmEngine as VllmEngine
    from lightning_core.backends.vllm.engine import open_vllm as open_vllm
    from lightning_core.backends.vllm.replicas import Replicas as Replicas
    from lightning_core.backends.vllm.server import VllmServer as VllmServer
    from lightning_core.backends.vllm.upstream import VllmUpstream as VllmUpstream

_HOMES = {
    "Replicas": "replicas",
    "ServerOptions": "command",
    "VllmEngine": "engine",
    "VllmServer": "server",
    "VllmUpstream": "upstream",
    "open_vllm": "engine",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
