"""What a started local backend consists of, and how it is made from its model and options."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from lightning_core.backends.chat.upstream import ChatUpstream
from lightning_core.backends.local.checkpoint import CRITIC, MOMENTS, Checkpoints
from lightning_core.backends.local.critic import LocalCritic
from lightning_core.backends.local.decoder import make_decoder
from lightning_core.backends.local.descent import OptimizerOptions
from lightning_core.backends.local.engine import Engine, EngineOptions
from lightning_core.backends.local.model import Model, load_model
from lightning_core.backends.local.optimizer import Optimizer
from lightning_core.backends.local.policy import Policy
from lightning_core.backends.local.tuning import Tuning, kv_shape, memory_bytes, tune
from lightning_core.backends.lora import LoraOptions

PREFIX_TOKENS = 1 << 17
"""Tokens whose keys and values are kept for reuse at most, memory allowing: a training step's worth."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What a started backend consists of."""

    policy: Policy
    tuning: Tuning
    engine: Engine
    upstream: ChatUpstream
    optimizer: Optimizer
    critic: LocalCritic
    checkpoints: Checkpoints

    def tensors(self) -> dict[str, dict[str, torch.Tensor]]:
        """What a checkpoint holds beside the policy's weights, by the name of its file."""
        critic = self.critic.state()
        return {MOMENTS: self.optimizer.descent.moments(), **({CRITIC: critic} if critic else {})}


def build_parts(
    source: str,
    options: OptimizerOptions,
    *,
    lora: LoraOptions | None,
    seed: int,
    context: int | None,
    device: str,
    dtype: str,
    threads: int | None,
    max_batch: int,
) -> Parts:
    """Load the model and measure what suits this machine. To be called in the optimizer's own thread, whose
    number of threads it sets."""
    model = load_model(source, context=context, device=device)
    # what serves is plain, without LoRA's layers
    serving = copy.deepcopy(model.network) if lora else model.network
    with torch.random.fork_rng():
        torch.manual_seed(seed)  # LoRA's start is random
        policy = Policy(model, lora)
    tuning = tune(policy, serving, threads=threads, dtype=dtype)
    torch.set_num_threads(tuning.train_threads)  # of this worker thread only
    engine = make_engine(model, serving, tuning.decode_threads, tuning.decode_dtype, max_batch)
    return Parts(
        policy=policy,
        tuning=tuning,
        engine=engine,
        upstream=ChatUpstream(model.chat, engine, seed=seed),
        optimizer=Optimizer(policy, options, source=source, bfloat16=tuning.train_bfloat16),
        critic=LocalCritic(policy, options, bfloat16=tuning.train_bfloat16),
        checkpoints=Checkpoints(policy),
    )


def make_engine(
    model: Model, serving: PreTrainedModel, threads: int, dtype: torch.dtype, max_batch: int
) -> Engine:
    """An engine with its own copy of the weights of `serving`, the plain network of `model`."""
    shape = kv_shape(serving, dtype)
    memory = memory_bytes(serving.device)
    room = EngineOptions(
        max_batch=max_batch,
        slot_bytes=memory // 8,
        prefix_bytes=min(memory // 16, PREFIX_TOKENS * shape.token_bytes),
    )
    decoder = make_decoder(serving, dtype, model.context)
    return Engine(decoder, shape, model.stop_ids, room, threads)
