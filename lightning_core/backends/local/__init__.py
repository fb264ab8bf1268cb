"""The local backend: engine and optimizer of a transformers causal LM, in one process."""

from lightning_core.backends.local.backend import LocalBackend

__all__ = ["LocalBackend"]
