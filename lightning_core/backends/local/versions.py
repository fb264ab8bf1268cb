"""One version of the weights: read where it lies, compared, exported, and served by an engine of its own.

It lies in a checkpoint, in a transformers folder, or under a model's name. A checkpoint of training with LoRA
holds low-rank adapters; these are merged into the model that they were made on.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import peft
import torch
from safetensors import SafetensorError, safe_open
from transformers import PreTrainedModel

from lightning_core.backends.base import TensorChange
from lightning_core.backends.chat.folder import check_folder, find_source
from lightning_core.backends.chat.upstream import ChatUpstream
from lightning_core.backends.folders import recover
from lightning_core.backends.local.attention import leave_plans
from lightning_core.backends.local.checkpoint import (
    ADAPTER,
    STATE,
    WEIGHTS,
    plain_files,
    write_folder,
)
from lightning_core.backends.local.decoder import (
    Decoder,
    LlamaDecoder,
    NetworkDecoder,
    StateDecoder,
    make_decoder,
)
from lightning_core.backends.local.engine import Engine, EngineOptions
from lightning_core.backends.local.exactness import Exactness
from lightning_core.backends.local.model import Model, load_model, memory_bytes, pick_device
from lightning_core.backends.local.policy import tied_names
from lightning_core.backends.local.tuning import kv_shape, tune_decoding
from lightning_core.backends.settings import BackendSettings, check_choice
from lightning_core.errors import ConfigError, ModelError
from lightning_core.ranges import check_range

logger = logging.getLogger(__name__)

PREFIX_TOKENS = 1 << 17
"""Tokens whose keys and values are kept for reuse at most, memory allowing: a training step's worth."""
GPU_PREFILL = 2048
"""Prompt tokens of one step where there is a GPU: it works on so many in little more time than on one."""
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
        try:
            state: dict[str, int | None] = json.loads((Path(self.source) / STATE).read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return None
        return state.get("context")


def read_version(content: Content, *, name: str, context: int | None, device: str) -> Model:
    """The model that the content amounts to, called `name`. Raises ModelError if it can't be read."""
    context = content.context if context is None else context
    lora, folder = content.lora, content.folder
    source = content.base if lora is not None else folder or content.source
    model = replace(load_model(source, context=context, device=device), name=name)
    if lora is not None:
        model = replace(model, network=_merged(model.network, lora))
    return model


def _merged(network: PreTrainedModel, lora: Path) -> PreTrainedModel:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # peft uses a name that transformers leaves behind
            device = str(network.device)  # peft's own choice is a GPU, where there is one
            wrapped = peft.PeftModel.from_pretrained(network, str(lora), torch_device=device)
        merged: PreTrainedModel = wrapped.merge_and_unload()
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"can't read the LoRA adapters in {str(lora)!r}: {error}") from error
    return merged.requires_grad_(False).eval()


def export_version(content: Content, folder: Path) -> None:
    """Write a plain transformers folder of the content, LoRA merged. Raises ModelError."""
    model = read_version(content, name="", context=None, device="cpu")
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
            network = read_version(content, name="", context=None, device="cpu").network
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


@dataclass(kw_only=True, eq=False)
class LocalSettings(BackendSettings):
    """Settings of the local backend."""

    device: str = "auto"
    """A device of torch; "auto": a GPU if there is one."""
    engine: Literal["torch", "vllm"] = "torch"
    """The program that samples: this process, or a vLLM server that it starts beside."""
    gpu_memory: float = 0.5
    """Share of the GPU's memory that vLLM takes."""
    sleep: bool | None = None
    """Free vLLM's memory while weights are trained; requests wait meanwhile. None: on a GPU."""

    def __post_init__(self) -> None:
        """Raise ConfigError for what can't be meant."""
        super().__post_init__()
        check_choice("engine", self.engine, ("torch", "vllm"))
        check_range("gpu_memory", self.gpu_memory, above=0, below=1)
        if self.engine == "torch" and self.sleep:
            raise ConfigError('sleep=True frees the memory of vLLM; give engine="vllm" too, or leave it')
        if self.engine == "vllm" and ":" in self.device:
            raise ConfigError(
                f'device={self.device!r} with engine="vllm": vLLM takes the first GPU that it sees; choose '
                "one for both with CUDA_VISIBLE_DEVICES"
            )

    @property
    def sleeps(self) -> bool:
        """Whether the engine's memory is freed while weights are trained."""
        if self.sleep is None:
            return self.engine == "vllm" and pick_device(self.device).type != "cpu"
        return self.sleep


Speed = tuple[int, torch.dtype]
"""Threads and number format of an engine."""


@dataclass(frozen=True, slots=True)
class LocalVersion:
    """One version being served (`gateway.engine_cache.VersionEngine`)."""

    upstream: ChatUpstream
    engine: Engine
    speed: Speed

    async def close(self) -> None:
        """Stop the engine."""
        await asyncio.to_thread(self.engine.close)


async def open_version(
    content: Content, version: int, settings: LocalSettings, speed: Speed | None
) -> LocalVersion:
    """Read the weights and start an engine on them. `speed` is measured if it is not known.

    Raises ModelError for content that can't be read.
    """
    loop, thread = asyncio.get_running_loop(), ThreadPoolExecutor(1, "lightning-reading")
    try:  # a thread of its own: measuring changes how many threads torch takes in it
        made = await loop.run_in_executor(thread, _make, content, version, settings, speed)
    finally:
        thread.shutdown(wait=False)
    made.engine.start()
    return made


def _make(content: Content, version: int, settings: LocalSettings, speed: Speed | None) -> LocalVersion:
    _, name = find_source(settings.model)
    model = read_version(content, name=name, context=settings.context, device=settings.device)
    check = Exactness(model.network, model.sample, model.context)
    if speed is None:
        with check.refusing("served"):
            speed = tune_decoding(model, model.network, dtype=settings.dtype)
    engine = make_engine(model, model.network, *speed, settings.max_batch, check)
    engine.policy_version = version
    # two engines with one seed would sample alike, in two gateways or one after another in the same
    upstream = ChatUpstream(model.chat, engine, seed=secrets.randbits(64))
    return LocalVersion(upstream, engine, speed)


def make_engine(
    model: Model, serving: PreTrainedModel, threads: int, dtype: torch.dtype, max_batch: int, check: Exactness
) -> Engine:
    """An engine with its own copy of the weights of `serving`, the plain network of `model`.

    Raises ModelError if it does not give the network's log-probabilities.
    """
    decoder = _exact_decoder(serving, dtype, model.context, threads, check)
    shape = kv_shape(serving, dtype)
    memory = memory_bytes(serving.device)
    room = EngineOptions(
        max_batch=max_batch,
        prefill_tokens=EngineOptions().prefill_tokens if serving.device.type == "cpu" else GPU_PREFILL,
        slot_bytes=memory // 8,
        prefix_bytes=min(memory // 16, PREFIX_TOKENS * shape.token_bytes),
    )
    return Engine(decoder, shape, model.stop_ids, room, threads)


def _exact_decoder(
    network: PreTrainedModel, dtype: torch.dtype, context: int, threads: int, check: Exactness
) -> Decoder:
    """The fastest decoder that is exact. Where none is that takes its attention from plans, the network is
    left with its own from now on."""
    with check.refusing("served"):
        decoder, refused = make_decoder(network, dtype, context), None
    while True:
        try:
            check.check_engine(decoder, dtype, threads)
        except ModelError as error:
            if isinstance(decoder, StateDecoder):
                raise refused or error from None
            refused = refused or error
            logger.warning("%s is not exact, so a slower way is tried: %s", type(decoder).__name__, error)
        else:
            return decoder
        if isinstance(decoder, LlamaDecoder):
            decoder = NetworkDecoder(network, dtype)
        else:
            leave_plans(network)
            with check.refusing("served"):
                decoder = StateDecoder(network, dtype)
