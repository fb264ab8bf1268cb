"""vLLM as the engine: tokens in, tokens out, from one server or several."""

from lightning_core.backends.vllm.replicas import Replicas
from lightning_core.backends.vllm.upstream import VllmUpstream

__all__ = ["Replicas", "VllmUpstream"]
