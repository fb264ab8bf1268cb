"""Writing folders of models whole or not at all, whatever ends the process that writes.

`.NAME.*.partial` is not finished, and the next writer deletes it. `.NAME.old` is whole: it is what stood at
NAME until a writer set it aside, and `recover` gives it its name again if nothing has taken its place.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_core.errors import ModelError

if TYPE_CHECKING:
    import torch

SHARD_BYTES = 4 << 30
WEIGHTS, STATE = "model.safetensors", "state.json"
ADAPTER, ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"
Files = Mapping[str, "bytes | dict[str, torch.Tensor]"]
"""Contents by file name; tensors become a safetensors file."""


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """An empty folder to write to, which takes the place of `folder` when the block ends without an error.

    Only its user may enter it and read its files. Raises ModelError, with what there was before as it was,
    if the disk refuses.
    """
    folder = folder.absolute()
    partial = _partial(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        recover(folder)
        _discard(folder)
        for left in folder.parent.glob(f".{folder.name}.*.partial"):
            shutil.rmtree(left)  # by a process that was killed while it wrote
        partial.mkdir(mode=0o700)
        yield partial
        for path in partial.rglob("*"):
            path.chmod(0o700 if path.is_dir() else 0o600)
        _swap(partial, folder)
    except OSError as error:
        raise ModelError(
            f"can't write model folder {str(folder)!r}: {error}; free some space or choose another folder"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        recover(folder)


def recover(folder: Path) -> None:
    """Give a folder its name again that a writer had set aside when it was killed.

    A reader of a folder that may be replaced meanwhile calls this first. One that is there is left alone.
    """
    if not folder.exists():
        with suppress(OSError):  # there is none, or its writer lives and has been quicker
            _old(folder).rename(folder)


def tidy(parent: Path) -> None:
    """Recover every folder in this one, and delete what else kills left there, while no one writes there."""
    for old in parent.glob(".*.old"):
        folder = parent / old.name.removeprefix(".").removesuffix(".old")
        recover(folder)
        with suppress(OSError):
            _discard(folder)
    for partial in parent.glob(".*.partial"):
        shutil.rmtree(partial, ignore_errors=True)


def _swap(partial: Path, folder: Path) -> None:
    """Give the finished folder its name; an older one steps aside first and is deleted after."""
    while True:
        try:
            partial.rename(folder)
            break
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        folder.rename(_old(folder))  # a reader may recover it, which takes another round
    _discard(folder)


def _discard(folder: Path) -> None:
    """Delete what was set aside; what is left of it by a kill is nothing that `recover` would take."""
    if _old(folder).exists():
        partial = _partial(folder)
        _old(folder).rename(partial)
        shutil.rmtree(partial)


def _partial(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}.partial")


def _old(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.old")


def write_folder(folder: Path, files: Files) -> None:
    """The folder with these files, replacing an older one: whole, or not at all.

    Tensors become a safetensors file, without a copy of them in memory.
    """
    # safetensors takes it from numpy, which recurses without end if two threads ask first at the same time
    import numpy.ctypeslib  # noqa: F401

    with replacing(folder) as partial:
        for name in files:
            (partial / name).parent.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(len(files)) as pool:  # each waits for the disk, so they wait together
            list(pool.map(lambda name: _write(partial / name, files[name]), files))


def _write(path: Path, content: bytes | dict[str, torch.Tensor]) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        tensors = {name: weight.detach().cpu().contiguous() for name, weight in content.items()}
        try:
            save_file(tensors, path, {"format": "pt"})
        except SafetensorError as error:
            raise OSError(str(error)) from error
    with path.open("rb+") as file:
        os.fsync(file.fileno())


# weights ---------------------------------------------------------------------------------
def write_weights(
    folder: Path | None,
    tensors: Iterable[tuple[str, torch.Tensor]],
    *,
    tied: bool,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write them tensor by tensor as a transformers model does: safetensors, in shards if they are big. The
    folder is made; with None they are only gone through, as another worker writes.

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
            _write_shard(folder, shard, count)
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
        _write_shard(folder, shard, count)
        _name_shards(folder, places, count + 1, total)


def _write_shard(folder: Path, shard: dict[str, torch.Tensor], number: int) -> None:
    from safetensors.torch import save_file

    save_file(shard, folder / f"{number}.part", metadata={"format": "pt"})


def _name_shards(folder: Path, places: dict[str, int], shards: int, total: int) -> None:
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


def read_state(folder: Path) -> dict[str, Any]:
    """The state in a checkpoint's `state.json`. Raises ModelError, naming the file, if it is
    missing or damaged."""
    file = folder / STATE
    try:
        state = json.loads(file.read_bytes())
        if not isinstance(state, dict):
            raise ValueError("it holds no JSON object")
        for name in ("policy_version", "optimizer_steps", "context", "critic_steps"):
            if not isinstance(state.get(name), int | None):
                raise ValueError(f"{name} is {state[name]!r}, no number")
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(
            f"can't read the checkpoint's file {str(file)!r}: {error}; restore it from a copy"
        ) from error
    return state


def check_complete(network: torch.nn.Module, missing: Iterable[str], source: str, advice: str) -> None:
    """Raise ModelError if `missing` names a weight: transformers goes on with random numbers in its place."""
    lacking = sorted(set(missing) & dict(network.named_parameters()).keys())
    if lacking:
        raise ModelError(
            f"model {source!r} lacks {len(lacking)} of the weights of {type(network).__name__}, "
            f"{lacking[0]!r} the first; {advice}"
        )
