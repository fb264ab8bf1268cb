"""One version of the weights: read where it lies, compared, and exported.

It lies in a checkpoint, in a transformers folder, or under a model's name. A checkpoint of training with LoRA
holds low-rank adapters; these are merged into the model that they were made on.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import peft
import torch
from safetensors import SafetensorError, safe_open
from transformers import PreTrainedModel

from lightning_core.backends.weights.folders import ADAPTER, STATE, WEIGHTS, read_state, recover, write_folder
from lightning_core.backends.weights.fourbit import round_weights
from lightning_core.backends.weights.model import Model, plain_files, read_model, tied_names
from lightning_core.backends.weights.sizes import TensorChange
from lightning_core.backends.weights.sources import check_folder
from lightning_core.errors import ModelError

_SHARDS = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class Content:
    """Where the weights of a version are."""

    source: str
    """As its record says: a folder, "tiny", or a model's name on the hub."""
    base: str
    """The model that LoRA's adapters in it were made on."""

    @property
    def folder(self) -> Path | None:
        """The transformers folder, or that of LoRA's adapters; None for a name on the hub."""
        path = Path(self.source)
        recover(path)
        if (path / "model").is_dir():
            return path / "model"
        if path.is_absolute() and not path.exists():
            raise ModelError(
                f"there is no folder {self.source!r} on this machine; the folders of a run's weights must be "
                "reached from here, on the machine that trains or over a file system that both share"
            )
        found = check_folder(self.source)
        return found if found.exists() else None

    @property
    def lora(self) -> Path | None:
        """The folder of LoRA's adapters, if the content is that."""
        folder = self.folder
        return folder if folder is not None and (folder / ADAPTER).is_file() else None

    @property
    def context(self) -> int | None:
        """The context that the checkpoint was trained with; None where that is not said."""
        return self._state().get("context")

    @property
    def in_4bit(self) -> bool:
        """Whether its LoRA adapters were trained on weights in 4 bits."""
        return bool(self._state().get("load_in_4bit"))

    def _state(self) -> dict[str, Any]:
        """The state in its checkpoint; empty where there is none."""
        folder = Path(self.source)
        return read_state(folder) if (folder / STATE).exists() else {}


def read_version(content: Content, *, name: str, context: int | None) -> Model:
    """The model that the content amounts to, called `name`. Raises ModelError if it can't be read."""
    context = content.context if context is None else context
    lora, folder = content.lora, content.folder
    source = content.base if lora is not None else folder or content.source
    model = replace(read_model(source, context=context), name=name)
    if lora is not None:
        if content.in_4bit:
            round_weights(model.network)
        model = replace(model, network=_merged(model.network, lora))
    return model


def _merged(network: PreTrainedModel, lora: Path) -> PreTrainedModel:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # peft uses a name that transformers leaves behind
            device = str(network.device)  # peft's own choice is a GPU, where there is one
            wrapped = peft.PeftModel.from_pretrained(network, str(lora), torch_device=device)
        with safe_open(lora / ADAPTER, framework="pt") as file:
            given = set(file.keys())
        if lost := sorted(given ^ peft.get_peft_model_state_dict(wrapped).keys()):
            raise ValueError(
                f"{lost[0]!r} and {len(lost) - 1} other tensors are in the file or the model alone, and peft "
                "would leave them out; its adapter_config.json must name the layers that were trained"
            )
        merged: PreTrainedModel = wrapped.merge_and_unload()
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"can't read the LoRA adapters in {str(lora)!r}: {error}") from error
    return merged.requires_grad_(False).eval()


def export_version(content: Content, folder: Path) -> None:
    """Write a plain transformers folder of the content, LoRA merged. Raises ModelError."""
    model = read_version(content, name="", context=None)
    tied = tied_names(model.network)
    weights = {n: w for n, w in model.network.state_dict().items() if n not in tied}
    write_folder(folder, plain_files(model) | {WEIGHTS: weights})


def compare_versions(before: Content, after: Content) -> list[TensorChange]:
    """How far each tensor has moved, the farthest first; one pair of tensors in memory at a time, unless
    there is LoRA to be merged."""
    with _open(before) as old, _open(after) as new:
        changes = [_change(name, old[name], new[name]) for name in sorted(old.names & new.names)]
        changes += [TensorChange(name, None, 0) for name in sorted(old.names ^ new.names)]
    return sorted(changes, key=lambda change: -1.0 if change.relative is None else -change.relative)


def _change(name: str, old: torch.Tensor, new: torch.Tensor) -> TensorChange:
    if old.shape != new.shape:
        return TensorChange(name, None, new.numel())
    old = old.float()
    length = old.norm().item()
    moved = (new.float() - old).norm().item()
    return TensorChange(name, moved / length if length else (float("inf") if moved else 0.0), new.numel())


class _Tensors:
    """The tensors of a content by name, each read when it is asked for."""

    def __init__(self, files: dict[str, Path], loaded: dict[str, torch.Tensor]) -> None:
        self._files = files
        self._loaded = loaded
        self.names = files.keys() | loaded.keys()

    def __getitem__(self, name: str) -> torch.Tensor:
        if name in self._loaded:
            return self._loaded[name]
        with safe_open(self._files[name], framework="pt") as file:
            tensor: torch.Tensor = file.get_tensor(name)
        return tensor


@contextmanager
def _open(content: Content) -> Iterator[_Tensors]:
    folder = content.folder
    try:
        if folder is None or content.lora is not None:
            network = read_version(content, name="", context=None).network
            tied = tied_names(network)
            yield _Tensors({}, {n: w for n, w in network.state_dict().items() if n not in tied})
        else:
            yield _Tensors(_files(folder), {})
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise ModelError(f"can't read the weights in {content.source!r}: {error}") from error


def _files(folder: Path) -> dict[str, Path]:
    """The file that each tensor is in."""
    if (folder / _SHARDS).is_file():
        shards = json.loads((folder / _SHARDS).read_bytes())["weight_map"]
        return {name: folder / file for name, file in shards.items()}
    with safe_open(folder / WEIGHTS, framework="pt") as file:
        return dict.fromkeys(file.keys(), folder / WEIGHTS)
