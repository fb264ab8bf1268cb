"""Writing folders whole or not at all, whatever ends the process that writes."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lightning_core.errors import ModelError


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """An empty folder to write to, which takes the place of `folder` when the block ends without an error.

    Raises ModelError, with what there was before as it was, if the disk refuses.
    """
    folder = folder.absolute()
    partial = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}.partial")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        for left in folder.parent.glob(f".{folder.name}.*.partial"):
            shutil.rmtree(left)  # by a process that was killed while it wrote
        partial.mkdir()
        yield partial
        _swap(partial, folder)
    except OSError as error:
        raise ModelError(
            f"can't write model folder {str(folder)!r}: {error}; free some space or choose another folder"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _swap(partial: Path, folder: Path) -> None:
    """Give the finished folder its name; an older one steps aside first and is deleted after."""
    if not folder.exists():
        partial.rename(folder)
        return
    old = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}.partial")
    folder.rename(old)
    partial.rename(folder)
    shutil.rmtree(old)
