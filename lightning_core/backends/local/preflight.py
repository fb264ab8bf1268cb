"""What a run in this process would be, told from the model's configuration alone.

Memory, in bytes, of P parameters, T of them trained, t = pack_tokens and b = 4 bytes of a number:

    training     4 P + 4 T + 8 T         weights, gradients, Adam
    engine       b P                     its own copy of the weights
    replies      2 b k L                 keys and values of each token; at most an eighth of the memory
    a pass       as in `verl.memory` without checkpoints, and 2 H t^2 L for what attention keeps of H heads
    reference    4 P, a critic 16 P      where the algorithm has one

An upper bound: in bfloat16, which is chosen by measuring, the engine and a pass take half.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lightning_core.algorithms.base import Algorithm
from lightning_core.backends.local.model import DEFAULT_CONTEXT, pick_device
from lightning_core.backends.local.optimizer import PACK_TOKENS
from lightning_core.backends.local.tuning import memory_bytes
from lightning_core.backends.local.versions import LocalSettings
from lightning_core.backends.preflight import Check, Fact, Outline, gib, many
from lightning_core.backends.settings import default_learning_rate
from lightning_core.backends.shape import Shape, measure

WIDE = 4


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes."""

    training: int
    engine: int
    replies: int
    working: int
    beside: int
    """Reference and critic."""

    @property
    def total(self) -> int:
        return self.training + self.engine + self.replies + self.working + self.beside


def need_of(shape: Shape, settings: LocalSettings, algorithms: Sequence[Algorithm], memory: int) -> Need:
    """What is taken at most."""
    tokens = max(settings.pack_tokens or PACK_TOKENS, shape.context)
    wide = shape.query + shape.keys
    layer = WIDE * (6 * shape.hidden + 4 * shape.inner + 4 * wide) + 8 * shape.hidden + 4 * wide
    heads = shape.query * shape.key_heads // max(1, shape.keys)
    cache = 2 * WIDE * shape.keys * shape.layers
    copies = 4 * any(each.needs_reference for each in algorithms)
    copies += 16 * any(each.critic is not None for each in algorithms)
    return Need(
        training=4 * shape.parameters + 12 * shape.trained(settings.lora),
        engine=WIDE * shape.parameters,
        replies=min(memory // 8, settings.max_batch * shape.context * cache),
        working=shape.layers * (tokens * layer + 2 * heads * tokens**2) + 12 * tokens * shape.vocabulary,
        beside=copies * shape.parameters,
    )


def outline(settings: LocalSettings, algorithms: Sequence[Algorithm]) -> Outline:
    """Facts and checks of a backend with these settings."""
    lora, pack_tokens = settings.lora, settings.pack_tokens or PACK_TOKENS
    shape = measure(settings.model, settings.context, most=DEFAULT_CONTEXT)
    device = pick_device(settings.device)
    memory = memory_bytes(device)
    need = need_of(shape, settings, algorithms, memory)
    rate = settings.learning_rate or default_learning_rate(shape.parameters, lora)
    trained = "all weights, in float32"
    if lora is not None:
        trained = f"LoRA of rank {lora.rank}: {many(shape.trained(lora))} parameters"
    told = f"at most {gib(need.total)} of {gib(memory)}"
    facts = (
        Fact("model", f"{shape.folder}, {many(shape.parameters)} parameters"),
        Fact("context", f"{shape.context:,} tokens of prompt and reply"),
        Fact("trained", trained),
        Fact("machine", f"this process, on {device.type}; {settings.max_batch} replies at a time"),
        Fact("memory", _memory(need)),
        Fact("learning rate", f"{rate:g} after {settings.warmup_steps} steps"),
        Fact("a pass", f"{pack_tokens:,} tokens"),
    )
    if need.total > memory:
        told += (
            f", {gib(need.total - memory)} too little; some help are pack_tokens={pack_tokens // 2}, "
            "context=..., lora=LoraOptions() and max_batch=...; on GPUs use the verl backend"
        )
    return Outline(facts, (Check("memory", need.total <= memory, told),), shape.context)


def _memory(need: Need) -> str:
    beside = f", reference and critic {gib(need.beside)}" if need.beside else ""
    return (
        f"at most {gib(need.total)}: training {gib(need.training)}, the engine {gib(need.engine)} and its "
        f"replies {gib(need.replies)}, a full pass {gib(need.working)}{beside}"
    )
