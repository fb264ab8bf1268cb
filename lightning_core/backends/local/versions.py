"""Settings of the local backend, and a version of the weights served by an engine of its own."""

from __future__ import annotations

import asyncio
import logging
import secrets
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

import torch
from transformers import PreTrainedModel

from lightning_core.backends.local.attention import leave_plans
from lightning_core.backends.local.decoder import (
    Decoder,
    LlamaDecoder,
    NetworkDecoder,
    StateDecoder,
    make_decoder,
)
from lightning_core.backends.local.engine import Engine, EngineOptions
from lightning_core.backends.local.exactness import Exactness
from lightning_core.backends.local.model import make_ready, memory_bytes, pick_device
from lightning_core.backends.local.tuning import kv_shape, tune_decoding
from lightning_core.backends.serving.upstream import ChatUpstream
from lightning_core.backends.settings import BackendSettings, check_choice
from lightning_core.backends.weights.model import Model
from lightning_core.backends.weights.sources import find_source
from lightning_core.backends.weights.versions import Content, read_version
from lightning_core.errors import ConfigError, ModelError
from lightning_core.ranges import check_range

logger = logging.getLogger(__name__)

PREFIX_TOKENS = 1 << 17
"""Tokens whose keys and values are kept for reuse at most, memory allowing: a training step's worth."""
GPU_PREFILL = 2048
"""Prompt tokens of one step where there is a GPU: it works on so many in little more time than on one."""


@dataclass(kw_only=True, eq=False)
class LocalSettings(BackendSettings):
    """Settings of the local backend."""

    device: str = "auto"
    """A device of torch; "auto": a GPU if there is one."""
    engine: Literal["torch", "vllm"] = "torch"
    """The program that samples: this process, or a vLLM server that it starts beside."""
    optimizer: Literal["adamw", "adamw_8bit"] = "adamw"
    """AdamW with its two moments in float32, or in 8 bits by blocks of 256 (arXiv 2110.02861)."""
    gpu_memory: float = 0.5
    """Share of the GPU's memory that vLLM takes."""
    sleep: bool | None = None
    """Free vLLM's memory while weights are trained; requests wait meanwhile. None: on a GPU."""

    def __post_init__(self) -> None:
        """Raise ConfigError for what can't be meant."""
        super().__post_init__()
        check_choice("engine", self.engine, ("torch", "vllm"))
        check_choice("optimizer", self.optimizer, ("adamw", "adamw_8bit"))
        check_range("gpu_memory", self.gpu_memory, above=0, below=1)
        if self.engine == "torch" and self.sleep:
            raise ConfigError('sleep=True frees the memory of vLLM; give engine="vllm" too, or leave it')
        if self.engine == "vllm" and ":" in self.device:
            raise ConfigError(
                f'device={self.device!r} with engine="vllm": vLLM takes the first GPU that it sees; choose '
                "one for both with CUDA_VISIBLE_DEVICES"
            )

    @property
    def in_4bit(self) -> bool:
        """Whether frozen weights are held in 4 bits."""
        return self.lora is not None and self.lora.load_in_4bit

    @property
    def moment_bytes(self) -> float:
        """Bytes of AdamW's two moments of a weight; in 8 bits a block of 256 has a scale in float32."""
        return 8 if self.optimizer == "adamw" else 2 * (1 + 4 / 256)

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
    model = read_version(content, name=name, context=settings.context)
    make_ready(model.network, pick_device(settings.device))
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
