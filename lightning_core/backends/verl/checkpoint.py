"""What the verl backend writes to disk and reads again: checkpoints, and weights as transformers folders."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from safetensors.torch import save_file

from lightning_core.backends.folders import recover, replacing
from lightning_core.errors import ModelError

if TYPE_CHECKING:
    from lightning_core.backends.verl.cluster import Cluster

STATE: Final = "state.json"
SHARD_BYTES: Final = 4 << 30


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


def write_weights(
    folder: Path | None,
    tensors: Iterable[tuple[str, torch.Tensor]],
    *,
    tied: bool,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write them into the folder, which is made; with None only go through them, as another worker writes.

    `tied`: the output layer's weight is the embedding's, and left out. Never is more than a shard in memory.
    Raises ModelError, once all were gone through, if one is not finite.
    """
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    shard: dict[str, torch.Tensor] = {}
    places: dict[str, int] = {}
    broken: list[str] = []
    size = total = count = 0
    for name, tensor in tensors:
        if folder is None or (tied and name == "lm_head.weight"):
            continue
        if shard and size + tensor.nbytes > shard_bytes:
            _write(folder, shard, count)
            shard, size, count = {}, 0, count + 1
        shard[name] = tensor.detach().to("cpu").contiguous()
        if not shard[name].isfinite().all():
            broken.append(name)
        places[name] = count
        size, total = size + tensor.nbytes, total + tensor.nbytes
    if broken:
        raise ModelError(
            f"{len(broken)} tensors are not finite, {broken[0]!r} the first, so they are not written: "
            "resume the run, which goes on from its last checkpoint"
        )
    if folder is not None:
        _write(folder, shard, count)
        _name(folder, places, count + 1, total)


def _write(folder: Path, shard: dict[str, torch.Tensor], number: int) -> None:
    save_file(shard, folder / f"{number}.part", metadata={"format": "pt"})


def _name(folder: Path, places: dict[str, int], shards: int, total: int) -> None:
    """Give the files their names, which say how many there are."""
    if shards == 1:
        (folder / "0.part").rename(folder / "model.safetensors")
        return
    names = [f"model-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
    for i, name in enumerate(names):
        (folder / f"{i}.part").rename(folder / name)
    index = {
        "metadata": {"total_size": total},
        "weight_map": {name: names[place] for name, place in places.items()},
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
