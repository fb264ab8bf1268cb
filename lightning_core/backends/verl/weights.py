"""Writing weights tensor by tensor as a transformers model does: safetensors, in shards if they are big."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors.torch import save_file

from lightning_core.errors import ModelError

SHARD_BYTES = 4 << 30


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
