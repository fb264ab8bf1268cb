"""What the verl backend writes to disk and reads again: checkpoints, and weights as transformers folders."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lightning_core.backends.folders import recover, replacing
from lightning_core.errors import ModelError

if TYPE_CHECKING:
    from lightning_core.backends.verl.cluster import Cluster

STATE: Final = "state.json"


def write_checkpoint(cluster: Cluster, folder: Path, state: dict[str, Any]) -> None:
    """`model/` as a transformers folder, verl's own files to go on from, and `state`."""
    with replacing(folder) as partial:
        _write_model(cluster, partial / "model")
        cluster.save(partial / "verl")
        (partial / STATE).write_text(json.dumps(state))


def write_model(cluster: Cluster, folder: Path) -> None:
    """A plain transformers folder, in place of an older one. Raises ModelError if the disk won't."""
    with replacing(folder) as partial:
        _write_model(cluster, partial)


def _write_model(cluster: Cluster, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for file in cluster.folder.iterdir():
        if file.is_file() and not file.name.endswith((".safetensors", ".safetensors.index.json", ".bin")):
            shutil.copy(file, folder / file.name)
    cluster.export(folder)


def read_state(folder: Path) -> dict[str, Any]:
    """The state of a checkpoint. Raises ModelError if it is none, or verl's own files are gone."""
    recover(folder)
    try:
        state: dict[str, Any] = json.loads((folder / STATE).read_text())
    except (OSError, ValueError) as error:
        raise ModelError(f"can't go on from checkpoint {str(folder)!r}: {error}") from error
    if not (folder / "verl" / "policy").is_dir():
        raise ModelError(
            f"checkpoint {str(folder)!r} was not written by the verl backend, or what is needed to go on "
            "was deleted; start a new run with model= its folder `model`"
        )
    return state
