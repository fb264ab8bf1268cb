"""The local backend: engine and optimizer of a transformers causal LM, in one process."""

from .backend import LocalBackend
from .policy import LoraOptions

__all__ = ["LocalBackend", "LoraOptions"]
