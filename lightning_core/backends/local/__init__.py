"""The local backend: engine and optimizer of a transformers causal LM, in one process."""

from lightning_core.errors import UnsupportedError


def _missing(error: ImportError) -> str:
    """The package that the first error of a chain names. Those of transformers that follow name none."""
    while isinstance(error.__cause__, ImportError):
        error = error.__cause__
    return (error.name or str(error)).partition(".")[0]


try:
    from lightning_core.backends.local.backend import LocalBackend
except ModuleNotFoundError as error:
    raise UnsupportedError(
        f"the local backend needs the package {_missing(error)!r}: pip install 'agent-lightning-core[local]'"
    ) from error

__all__ = ["LocalBackend"]
