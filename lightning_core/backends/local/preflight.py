"""What a run in this process would be, told from the model's configuration alone.

Memory, in bytes, beside what `backends.preflight` says of training, with P parameters and b = 4:

    engine       b P        its own copy of the weights
    replies      2 b k L    keys and values of each token; at most an eighth of the memory
    scores       2 H t^2 L  of a pass: what attention keeps of H heads
    reference    4 P, a critic 16 P, where an algorithm has one

An upper bound: in bfloat16, which is chosen by measuring, the engine and a pass take half.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

from lightning_core.algorithms.base import Algorithm
from lightning_core.backends.local.model import DEFAULT_CONTEXT, pick_device
from lightning_core.backends.local.optimizer import PACK_TOKENS
from lightning_core.backends.local.tuning import memory_bytes
from lightning_core.backends.local.versions import LocalSettings
from lightning_core.backends.preflight import (
    MemoryEstimate,
    MemoryUse,
    ModelSize,
    RunPlan,
    check_memory,
    measure,
    training_memory,
)
from lightning_core.backends.settings import LoraOptions, default_learning_rate

WIDE = 4
WHERE = "this process"


def plan_run(settings: LocalSettings, algorithms: Sequence[Algorithm]) -> RunPlan:
    """Facts and checks of a backend with these settings."""
    size = measure(settings.model, settings.context, most=DEFAULT_CONTEXT)
    device = pick_device(settings.device)
    memory = memory_bytes(device)
    rate = settings.learning_rate or default_learning_rate(size.parameters, settings.lora)
    tokens = settings.pack_tokens or PACK_TOKENS
    training = training_memory(size, settings.lora, tokens=max(tokens, size.context), number=WIDE)
    facts = (
        *size.facts(settings.lora),
        ("machine", f"{WHERE}, on {device.type}; {settings.max_batch} replies at a time"),
        ("memory to train", str(training)),
        ("learning rate", f"{rate:.3g} after {settings.warmup_steps} steps"),
        ("a pass", f"{tokens:,} tokens"),
    )
    others = (
        (text, _estimate(changed, size, algorithms, memory)) for text, changed in _changes(settings, size)
    )
    return RunPlan(facts, (check_memory(size, WHERE, _estimate(settings, size, algorithms, memory), others),))


def _estimate(
    settings: LocalSettings, size: ModelSize, algorithms: Sequence[Algorithm], memory: int
) -> MemoryEstimate:
    context = min(size.context, settings.context or size.context)
    tokens = max(settings.pack_tokens or PACK_TOKENS, context)
    training = training_memory(size, settings.lora, tokens=tokens, number=WIDE)
    heads = size.query * size.key_heads // max(1, size.keys)
    cache = 2 * WIDE * size.keys * size.layers
    copies = 4 * any(each.needs_reference for each in algorithms)
    copies += 16 * any(each.critic is not None for each in algorithms)
    need = training.peak + 2 * heads * tokens**2 * size.layers + (WIDE + copies) * size.parameters
    need += min(memory // 8, settings.max_batch * context * cache)
    return MemoryEstimate((MemoryUse("memory", need, memory),))


def _changes(settings: LocalSettings, size: ModelSize) -> Iterator[tuple[str, LocalSettings]]:
    """Settings that people turn to make a model fit, with how that is written."""
    tokens, half = settings.pack_tokens or PACK_TOKENS, max(256, size.context // 2)
    plain: dict[str, Any] = {each.name: getattr(settings, each.name) for each in fields(LocalSettings)}
    tried: list[tuple[str, dict[str, Any]]] = [
        (f"pack_tokens={tokens // 2}", {"pack_tokens": tokens // 2}),
        (f"context={half} with pack_tokens={half}", {"context": half, "pack_tokens": half}),
        ("lora=LoraOptions()", {"lora": settings.lora or LoraOptions()}),
        (f"max_batch={max(1, settings.max_batch // 4)}", {"max_batch": max(1, settings.max_batch // 4)}),
    ]
    for text, change in tried:
        yield text, LocalSettings(**{**plain, **change})
