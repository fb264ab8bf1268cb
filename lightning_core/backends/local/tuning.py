"""Threads and number format, chosen by measuring this model on this machine for about a second at start.

Small models lose by more threads and by bfloat16, large ones win; where the line is depends on the processor.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from lightning_core.backends.local.cache import Shape, Slots
from lightning_core.backends.local.decoder import make_decoder
from lightning_core.backends.local.model import head_size, kv_heads, parameter_count
from lightning_core.backends.local.packing import TreePlan
from lightning_core.backends.local.plan import StepPlan
from lightning_core.backends.local.policy import Policy

WORTH = 1.3
"""How many times faster an option must be than the plainer one: twice the threads leave the app one core
less, and bfloat16 makes recorded logprobs less exact."""
BUDGET = 0.15
"""Seconds for one measurement; a model that needs longer for a single pass takes all cores without more
trials."""
BATCH, LENGTH, TRAIN_TOKENS = 32, 128, 512
LARGE = 50_000_000
"""Parameters from which bfloat16 is tried at all."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """How the backend runs."""

    decode_threads: int
    decode_dtype: torch.dtype
    train_threads: int
    train_bfloat16: bool


def kv_shape(network: PreTrainedModel, dtype: torch.dtype) -> Shape:
    """What the keys and values of this model are made of."""
    return Shape(
        layers=network.config.num_hidden_layers,
        heads=kv_heads(network),
        size=head_size(network),
        dtype=dtype,
        device=network.get_input_embeddings().weight.device,
    )


def memory_bytes(device: torch.device) -> int:
    """Memory of the device, free or not; of the machine where the device shares it."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1])
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not on every system
        return 4 << 30


def tune(policy: Policy, serving: PreTrainedModel, *, threads: int | None, dtype: str) -> Tuning:
    """Measure what was not decided by the caller: decoding with `serving`, the network without LoRA's layers.

    Changes the calling thread's number of threads.
    """
    decode = tune_decoding(serving, policy.model.context, threads=threads, dtype=dtype)
    train_threads, train_dtype = _measure(
        _options(serving, threads, dtype), lambda chosen: _train_pass(policy, chosen)
    )
    return Tuning(*decode, train_threads, train_dtype == torch.bfloat16)


def tune_decoding(
    serving: PreTrainedModel, context: int, *, threads: int | None, dtype: str
) -> tuple[int, torch.dtype]:
    """(threads, number format) for an engine; measured, where the caller has not decided, as `tune` does."""
    return _measure(_options(serving, threads, dtype), lambda chosen: _decode_step(serving, context, chosen))


def _options(serving: PreTrainedModel, threads: int | None, dtype: str) -> list[tuple[int, torch.dtype]]:
    """What there is to choose from, the plainest first."""
    counts = [threads] if threads is not None else _thread_counts(serving)
    return [(count, chosen) for chosen in _dtypes(serving, dtype) for count in counts]


def _measure(
    options: list[tuple[int, torch.dtype]], work: Callable[[torch.dtype], Callable[[], None]]
) -> tuple[int, torch.dtype]:
    """The option to take; a single one is not measured."""
    seconds = dict.fromkeys(options, 0.0)
    if len(options) > 1:
        for count, chosen in options:
            torch.set_num_threads(count)
            seconds[count, chosen] = _best(work(chosen))
    return _choose(seconds)


def _thread_counts(network: PreTrainedModel) -> list[int]:
    if network.device.type != "cpu":
        return [1]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return sorted({1, *(2**i for i in range(1, 8) if 2**i <= cores), cores})


def _dtypes(network: PreTrainedModel, dtype: str) -> list[torch.dtype]:
    if dtype != "auto":
        return [torch.bfloat16 if dtype == "bfloat16" else torch.float32]
    if parameter_count(network) < LARGE:
        return [torch.float32]
    return [torch.float32, torch.bfloat16]


def _choose(seconds: dict[tuple[int, torch.dtype], float]) -> tuple[int, torch.dtype]:
    """The first (plainest) option, unless a later one is worth it."""
    chosen, best = None, float("inf")
    for option, needed in seconds.items():
        if chosen is None or needed * WORTH < best:
            chosen, best = option, needed
    assert chosen is not None
    return chosen


def _best(work: Callable[[], None]) -> float:
    """Seconds of the fastest of a few passes: the one that was disturbed least."""
    best, deadline = float("inf"), time.perf_counter() + BUDGET
    work()
    while True:
        started = time.perf_counter()
        work()
        ended = time.perf_counter()
        best = min(best, ended - started)
        if ended > deadline:
            return best


def _decode_step(network: PreTrainedModel, context: int, dtype: torch.dtype) -> Callable[[], None]:
    decoder = make_decoder(network, dtype, context)
    length = min(LENGTH, context - 1)
    slots = Slots(kv_shape(network, dtype), BATCH, max_bytes=1 << 62, capacity=length + 1)
    tokens, keep = torch.zeros(BATCH, dtype=torch.int64), torch.arange(BATCH)
    device = slots.shape.device

    @torch.inference_mode()
    def step() -> None:
        plan = StepPlan(slots, [length] * BATCH, [])
        decoder.logits(tokens.to(device), plan.positions, plan, keep.to(device)).sum().item()

    return step


def _train_pass(policy: Policy, dtype: torch.dtype) -> Callable[[], None]:
    device = policy.model.network.device
    count = min(TRAIN_TOKENS, policy.model.context)
    tokens = torch.zeros(1, count, dtype=torch.int64, device=device)
    plan = TreePlan(torch.full((count,), count, device=device), policy.groups, torch.float32)

    def train() -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
            positions = torch.arange(count, device=device)[None]
            out = policy.network(input_ids=tokens, position_ids=positions, use_cache=False, plan=plan)
        out.logits.float().logsumexp(-1).sum().backward()
        for parameter in policy.parameters:
            parameter.grad = None

    return train
