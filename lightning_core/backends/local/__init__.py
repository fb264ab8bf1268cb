"""The local backend: engine and optimizer of a transformers causal LM, in one process."""

from lightning_core.errors import UnsupportedError

try:
    from lightning_core.backends.local.backend import LocalBackend
except ModuleNotFoundError as error:
    raise UnsupportedError(
        f"the local backend needs the package {error.name!r}: pip install 'agent-lightning-core[local]'"
    ) from error

__all__ = ["LocalBackend"]
