"""The plan of a run in this process, from the model's configuration alone.

Memory, in bytes, beside what `backends.preflight` says of training, with P parameters and b = 4:

    engine       b P        its own copy of the weights
    replies      2 b k L    keys and values of each token; at most an eighth of the memory
    scores       b H n L    of a pass: what attention keeps of n pairs of tokens and H heads
    states       an eighth of the memory at most, with replies; layers with state keep 4 times the activations
                 (1.1 to 3.6 times in Qwen3.5, LFM2 and Falcon-H1 of 2 M and 16 M parameters)
    reference    4 P, a critic 16 P, where an algorithm has one

A pass whose activations and scores have no room keeps the input of each layer, and one layer is computed
again at a time. An upper bound: in bfloat16, which is chosen by measuring, the engine and a pass take half.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

from lightning_core.algorithms.base import Algorithm
from lightning_core.backends.local.model import FAMILIES, memory_bytes, pick_device
from lightning_core.backends.local.packing import LOGITS_BYTES, PACK_TOKENS
from lightning_core.backends.local.policy import WIDE, activation_room, pass_bytes
from lightning_core.backends.local.versions import LocalSettings
from lightning_core.backends.preflight import (
    DEFAULT_CONTEXT,
    MemoryEstimate,
    MemoryUse,
    ModelSize,
    RunPlan,
    TrainingMemory,
    check_memory,
    check_weights,
    measure,
    training_memory,
)
from lightning_core.backends.settings import LoraOptions, default_learning_rate

WHERE = "this process"
STATE_LAYERS = 4
"""How many times the activations of attention layers those with state keep, at most."""


def plan_run(settings: LocalSettings, algorithms: Sequence[Algorithm]) -> RunPlan:
    """Facts and checks of a backend with these settings."""
    size = measure(settings.model, settings.context, most=DEFAULT_CONTEXT)
    check_weights(settings.model)
    device = pick_device(settings.device)
    memory = memory_bytes(device)
    rate = settings.learning_rate or default_learning_rate(size.parameters, settings.lora)
    tokens = settings.pack_tokens or PACK_TOKENS
    training = _training(settings, size, algorithms, memory)
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
    check = check_memory(size, WHERE, _estimate(settings, size, algorithms, memory), others)
    return RunPlan(facts, (check,), size.disk(settings.lora))


def _estimate(
    settings: LocalSettings, size: ModelSize, algorithms: Sequence[Algorithm], memory: int
) -> MemoryEstimate:
    context = min(size.context, settings.context or size.context)
    cache = 2 * WIDE * size.keys * size.layers
    need = _training(settings, size, algorithms, memory).peak
    need += WIDE * (1 + _copies(algorithms)) * size.parameters
    replies = settings.max_batch * context * cache
    need += memory // 8 if size.states else min(memory // 8, replies)
    return MemoryEstimate((MemoryUse("memory", need, memory),))


def _training(
    settings: LocalSettings, size: ModelSize, algorithms: Sequence[Algorithm], memory: int
) -> TrainingMemory:
    """With as many activations as there is room for, or those that are least."""
    context = min(size.context, settings.context or size.context)
    tokens = max(settings.pack_tokens or PACK_TOKENS, context)
    pairs = tokens**2 // 2
    least = training_memory(size, settings.lora, tokens=tokens, number=WIDE, checkpoints=True)
    room = activation_room(size, settings.lora, memory, _copies(algorithms))
    more = STATE_LAYERS - 1 if size.states else 0
    spared = least.activations + more * least.layer + WIDE * size.heads * pairs
    logits = 4 * LOGITS_BYTES if size.architecture in FAMILIES else least.logits
    return replace(
        least,
        activations=min((1 + more) * pass_bytes(size, tokens, pairs), max(room, spared)),
        logits=min(least.logits, logits),
    )


def _copies(algorithms: Sequence[Algorithm]) -> int:
    """Numbers for each parameter that a reference and a critic keep."""
    return any(each.needs_reference for each in algorithms) + 4 * any(each.critic for each in algorithms)


def _changes(settings: LocalSettings, size: ModelSize) -> Iterator[tuple[str, LocalSettings]]:
    """Settings that people turn to make a model fit, with how that is written."""
    tokens, half = settings.pack_tokens or PACK_TOKENS, max(256, size.context // 2)
    plain: dict[str, Any] = {
        each.name: getattr(settings, each.name) for each in fields(LocalSettings) if each.init
    }
    tried: list[tuple[str, dict[str, Any]]] = [
        (f"pack_tokens={tokens // 2}", {"pack_tokens": tokens // 2}),
        (f"context={half} with pack_tokens={half}", {"context": half, "pack_tokens": half}),
        ("lora=LoraOptions()", {"lora": settings.lora or LoraOptions()}),
        (f"max_batch={max(1, settings.max_batch // 4)}", {"max_batch": max(1, settings.max_batch // 4)}),
    ]
    for text, change in tried:
        yield text, LocalSettings(**{**plain, **change})
