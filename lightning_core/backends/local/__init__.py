"""The local backend: engine and optimizer of a transformers causal LM, in one process."""

from lightning_core.backends.local.backend import LocalBackend
from lightning_core.backends.local.policy import LoraOptions

__all__ = ["LocalBackend", "LoraOptions"]
