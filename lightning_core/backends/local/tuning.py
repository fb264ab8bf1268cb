"""Threads and number format of the local backend: measured on small models, by rule on large ones.

A small model loses by more threads; where the line is depends on the processor, so it is measured, in about a
second. A large model takes all cores: a pass of it is worth them, and would take long to measure. On a
processor all is computed in float32: bfloat16 makes recorded log-probabilities less exact, and is slower
where the processor does not compute in it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import torch
from transformers import PreTrainedModel

from lightning_core.backends.local.attention import survey, takes_plans
from lightning_core.backends.local.cache import Shape
from lightning_core.backends.local.decoder import bfloat16_error, make_decoder
from lightning_core.backends.local.memory import TokenRun
from lightning_core.backends.local.packing import make_plan
from lightning_core.backends.local.policy import Policy
from lightning_core.backends.settings import SMALL
from lightning_core.backends.weights.model import Model, parameter_count
from lightning_core.errors import UnsupportedError

WORTH = 1.3
"""How many times faster twice the threads must be: they leave the app one core less."""
BUDGET = 0.15
"""Seconds for one measurement."""
BATCH, LENGTH, TRAIN_TOKENS = 32, 128, 512
BFLOAT16_TOLERANCE = 0.2
"""Nats by which bfloat16 may move the log-probability of the likeliest token: the clip range of a ratio."""


def kv_shape(network: PreTrainedModel, dtype: torch.dtype) -> Shape:
    """Returns the shape of this model's keys and values; the largest, where it takes no plans."""
    device, config = network.get_input_embeddings().weight.device, network.config
    if not takes_plans(network):
        layers, size = config.num_hidden_layers, config.hidden_size
        return Shape(layers=layers, heads=1, size=size, dtype=dtype, device=device, calls=())
    calls = survey(network)
    return Shape(
        layers=1 + max(call.slot for call in calls),
        heads=max(call.heads for call in calls),
        size=max(max(call.key_size, call.value_size) for call in calls),
        dtype=dtype,
        device=device,
        calls=calls,
    )


def tune_training(policy: Policy, *, bfloat16: bool) -> int:
    """The number of threads of an update. Changes that of the calling thread."""
    return _fastest(policy.base, lambda: _train_pass(policy, bfloat16))


def tune_decoding(model: Model, serving: PreTrainedModel, *, dtype: str) -> tuple[int, torch.dtype]:
    """(threads, number format) of an engine for `serving`, the plain network of `model`.

    Changes the calling thread's number of threads.
    Raises UnsupportedError for bfloat16 that was asked for and moves log-probabilities too far.
    """
    chosen = _choose_dtype(model, serving, dtype)
    return _fastest(serving, lambda: _decode_step(model, serving, chosen)), chosen


def _choose_dtype(model: Model, serving: PreTrainedModel, dtype: str) -> torch.dtype:
    """ "auto" is bfloat16 for a large model on an accelerator, where that is exact enough."""
    auto = dtype == "auto"
    if dtype == "float32" or (auto and (serving.device.type == "cpu" or parameter_count(serving) < SMALL)):
        return torch.float32
    error = bfloat16_error(serving, model.context, model.sample)
    if error <= BFLOAT16_TOLERANCE:
        return torch.bfloat16
    if auto:
        return torch.float32
    raise UnsupportedError(
        f"bfloat16 moves log-probabilities of model {model.name!r} by up to {error:.2f} nats; at most "
        f'{BFLOAT16_TOLERANCE} keeps training sound. Use dtype="float32"'
    )


def _fastest(network: PreTrainedModel, make: Callable[[], Callable[[], None]]) -> int:
    """The number of threads for the work that `make` prepares."""
    if network.device.type != "cpu":
        return 1
    cores = _cores()
    counts = sorted({1, *(2**i for i in range(1, 8) if 2**i <= cores), cores})
    if parameter_count(network) >= SMALL or len(counts) == 1:
        return cores
    work = make()
    chosen, best = 1, float("inf")
    for count in counts:
        torch.set_num_threads(count)
        seconds = _best(work)
        if seconds * WORTH < best:
            chosen, best = count, seconds
    return chosen


def _cores() -> int:
    """Returns the number of cores this process may use; OMP_NUM_THREADS limits it, as in torch and NumPy."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    return min(cores, int(limit)) if limit.isdigit() and int(limit) else cores


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


def _decode_step(model: Model, serving: PreTrainedModel, dtype: torch.dtype) -> Callable[[], None]:
    decoder = make_decoder(serving, dtype, model.context)
    length = min(LENGTH, model.context - 1)
    memory = decoder.memory(kv_shape(serving, dtype), BATCH, slot_bytes=1 << 62, prefix_bytes=0)
    tokens, rows = [0] * BATCH, list(range(BATCH))
    memory.reserve(length + 1, BATCH)

    @torch.inference_mode()
    def step() -> None:
        memory.logits([length] * BATCH, [], tokens, rows).sum().item()

    with torch.inference_mode():
        memory.logits([], [TokenRun(row, 0, 1) for row in rows], tokens, rows)

    return step


def _train_pass(policy: Policy, bfloat16: bool) -> Callable[[], None]:
    device = policy.model.network.device
    count = min(TRAIN_TOKENS, policy.model.context)
    places = torch.arange(count, device=device)
    plan = make_plan(policy.base, torch.full_like(places, count))

    def train() -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=bfloat16):
            logits = plan.logits(policy.network, torch.zeros_like(places), places, places)
        torch.autograd.backward(logits.float().logsumexp(-1).sum())
        for parameter in policy.parameters:
            parameter.grad = None

    return train
