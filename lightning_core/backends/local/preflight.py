"""The plan of a run in this process, from the model's configuration alone.

Memory, in bytes, beside what `backends.preflight` says of training, with P parameters, and b = 4, or 2 on a
GPU, where large models are computed in bfloat16:

    engine       b P        its own copy of the weights
    replies      2 b k L    keys and values of each token; at most an eighth of the memory
    scores       b H n L    of a pass: what attention keeps of n pairs of tokens and H heads
    states       an eighth of the memory at most, with replies; layers with state keep 4 times the activations
                 (1.1 to 3.6 times in Qwen3.5, LFM2 and Falcon-H1 of 2 M and 16 M parameters)
    reference    4 P, a critic 16 P, where an algorithm has one

    prefixes     2 b k tokens, 131,072 at most, and a sixteenth of the memory at most
    weights      2 P            on a GPU a pass keeps its copy of them in bfloat16
    CUDA         1 GiB          for the driver and the libraries: a guess
    vLLM         its share of a GPU for engine, replies and prefixes; on a processor a GiB for replies

A pass whose activations and scores have no room keeps the input of each layer, and one layer is computed
again at a time. Where attention is compiled no scores are kept. An upper bound: a model whose
log-probabilities bfloat16 moves too far is computed in float32, which takes twice that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from lightning_core.algorithms.base import Algorithm
from lightning_core.backends.local.model import FAMILIES, memory_bytes, pick_device
from lightning_core.backends.local.packing import has_kernel, logits_bytes, pass_tokens
from lightning_core.backends.local.policy import HALF, WIDE, activation_room, pass_bytes
from lightning_core.backends.local.versions import PREFIX_TOKENS, LocalSettings
from lightning_core.backends.preflight import (
    MemoryEstimate,
    MemoryUse,
    RunPlan,
    TrainingMemory,
    check_memory,
    gib,
    training_memory,
)
from lightning_core.backends.settings import SMALL, LoraOptions, default_learning_rate
from lightning_core.backends.weights.sizes import DEFAULT_CONTEXT, ModelSize, check_weights, measure

WHERE = "this process"
CUDA_BYTES = 1 << 30
VLLM_CPU_BYTES = 1 << 30
"""Keys and values of vLLM on a processor (`vllm.server.CPU_ARGUMENTS`)."""
STATE_LAYERS = 4
"""How many times the activations of attention layers those with state keep, at most."""


def plan_run(settings: LocalSettings, algorithms: Sequence[Algorithm], *, shared: bool = False) -> RunPlan:
    """Facts and checks of a backend with these settings; `shared`: another one holds its frozen weights."""
    size = measure(settings.model, settings.context, most=DEFAULT_CONTEXT)
    check_weights(settings.model)
    device = pick_device(settings.device)
    card = Card(device, memory_bytes(device))
    rate = settings.learning_rate or default_learning_rate(size.parameters, settings.lora)
    tokens = pass_tokens(settings.pack_tokens, device)
    training = _training(settings, size, algorithms, card)
    facts = (
        *size.facts(settings.lora),
        ("machine", f"{WHERE}, on {device.type}; {settings.max_batch} replies at a time"),
        ("memory to train", str(training)),
        ("memory to serve", serving(settings, size, card)),
        ("learning rate", f"{rate:.3g} after {settings.warmup_steps} steps"),
        ("a pass", f"{tokens:,} tokens"),
    )
    others = (
        (text, estimate(changed, size, algorithms, card))
        for text, changed in _changes(settings, size, tokens)
    )
    found = estimate(settings, size, algorithms, card)
    check = check_memory(size, WHERE, found, others)
    (use,) = found.uses
    if shared:
        weights = size.weight_bytes(settings.lora)
        use = replace(use, need=use.need - weights, held=use.held - weights)
    return RunPlan(facts, (check,), size.disk(settings.lora), MemoryEstimate((use,)))


@dataclass(frozen=True, slots=True)
class Card:
    """The device of a run."""

    device: torch.device
    memory: int
    """Bytes, free or not."""

    def number(self, settings: LocalSettings, size: ModelSize) -> int:
        """Bytes of a number in the engine and in a pass: `tuning` takes bfloat16 by the same rule, where it
        is exact enough."""
        half = self.device.type != "cpu" and size.parameters >= SMALL
        return HALF if settings.dtype == "bfloat16" or (settings.dtype == "auto" and half) else WIDE


def estimate(
    settings: LocalSettings, size: ModelSize, algorithms: Sequence[Algorithm], card: Card
) -> MemoryEstimate:
    """The most that is there at the same time."""
    training = _training(settings, size, algorithms, card)
    engine = sum(_serving(settings, size, card))
    need = max(training.peak, training.state + engine) if settings.sleeps else training.peak + engine
    copies = WIDE * _copies(algorithms) * size.parameters
    held = training.state + engine + copies
    need += copies
    if card.device.type == "cuda":
        need += CUDA_BYTES
    return MemoryEstimate((MemoryUse("memory", need, card.memory, held),))


def serving(settings: LocalSettings, size: ModelSize, card: Card) -> str:
    """Describes the engine's memory, in words."""
    weights, replies, prefixes = _serving(settings, size, card)
    return f"weights {gib(weights)}, replies {gib(replies)} at most, their prefixes {gib(prefixes)}"


def _serving(settings: LocalSettings, size: ModelSize, card: Card) -> tuple[int, int, int]:
    """Bytes of the engine's weights, of replies in flight at most, and of reusable prefixes."""
    number = card.number(settings, size)
    context = min(size.context, settings.context or size.context)
    token = 2 * number * size.keys * size.layers
    if settings.engine == "vllm":
        share = int(settings.gpu_memory * card.memory) - number * size.parameters
        return number * size.parameters, max(0, share) if card.device.type == "cuda" else VLLM_CPU_BYTES, 0
    replies = card.memory // 8
    if not size.states:
        replies = min(replies, settings.max_batch * context * token)
    prefixes = min(card.memory // 16, PREFIX_TOKENS * token) if card.device.type == "cuda" else 0
    return number * size.parameters, replies, prefixes


def _training(
    settings: LocalSettings, size: ModelSize, algorithms: Sequence[Algorithm], card: Card
) -> TrainingMemory:
    """With as many activations as there is room for, or those that are least."""
    context = min(size.context, settings.context or size.context)
    tokens = max(pass_tokens(settings.pack_tokens, card.device), context)
    number = card.number(settings, size)
    compiled = number == HALF and has_kernel(card.device, size.parameters, size.architecture)
    pairs = tokens if compiled else tokens**2 // 2
    moments = settings.moment_bytes
    least = training_memory(
        size, settings.lora, tokens=tokens, number=number, checkpoints=True, moments=moments
    )
    logits = 4 * logits_bytes(card.device) if size.architecture in FAMILIES else least.logits
    logits = min(least.logits, logits)
    apart = logits if card.device.type == "cuda" else 0
    copies = _copies(algorithms)
    room = activation_room(size, settings.lora, card.memory, copies, number, apart, moments)
    more = STATE_LAYERS - 1 if size.states else 0
    spared = least.activations + more * least.layer + number * size.heads * pairs
    if number == HALF:  # layers' inputs are float32
        spared += HALF * tokens * size.hidden * size.layers + HALF * size.layer
    return replace(
        least,
        activations=min((1 + more) * pass_bytes(size, tokens, pairs, number), max(room, spared)),
        logits=logits,
    )


def _copies(algorithms: Sequence[Algorithm]) -> int:
    """Numbers for each parameter that a reference and a critic keep."""
    return any(each.needs_reference for each in algorithms) + 4 * any(each.critic for each in algorithms)


def _changes(settings: LocalSettings, size: ModelSize, tokens: int) -> Iterator[tuple[str, LocalSettings]]:
    """Settings that people turn to make a model fit, with how that is written."""
    half = max(256, size.context // 2)
    plain: dict[str, Any] = {
        each.name: getattr(settings, each.name) for each in fields(LocalSettings) if each.init
    }
    packed = replace(settings.lora or LoraOptions(), load_in_4bit=True)
    tried: list[tuple[str, dict[str, Any]]] = [
        (f"pack_tokens={tokens // 2}", {"pack_tokens": tokens // 2}),
        (f"context={half} with pack_tokens={half}", {"context": half, "pack_tokens": half}),
        ("lora=LoraOptions()", {"lora": settings.lora or LoraOptions()}),
        ("lora=LoraOptions(load_in_4bit=True)", {"lora": packed}),
        ('optimizer="adamw_8bit"', {"optimizer": "adamw_8bit"}),
        (f"max_batch={max(1, settings.max_batch // 4)}", {"max_batch": max(1, settings.max_batch // 4)}),
    ]
    for text, change in tried:
        yield text, LocalSettings(**{**plain, **change})
