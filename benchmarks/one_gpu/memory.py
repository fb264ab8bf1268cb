"""Whether an update goes on where memory runs out, with less memory than its pass would take."""

from __future__ import annotations

import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from benchmarks.one_gpu.checks import as_model, check, ready, reinforce
from benchmarks.one_gpu.measures import clear, make_batch
from benchmarks.one_gpu.models import SHIPPED, Where
from benchmarks.one_gpu.rows import Rows
from lightning_core.backends.local.optimizer import Optimizer
from lightning_core.backends.local.policy import Policy
from lightning_core.backends.settings import TrainingSettings
from lightning_core.backends.weights.model import parameter_count
from lightning_core.backends.weights.sources import find_source

STATE = 12
"""Bytes of a parameter's gradient and moments: those are needed however small a pass is."""


def memory(where: Where, rows: Rows) -> None:
    """The same weights after an update with little memory as after one with enough."""
    rows.title("An update that runs out of memory")
    batch = make_batch(4 if where.quick else 16, 1_024, 512)
    with rows.row(memory="enough") as row:
        optimizer = make_optimizer(where)
        before = in_use(where)
        optimizer.update(batch, reinforce())
        most = most_in_use(where) - before
        row["tokens a pass"], row["layers again"] = optimizer.pass_tokens, optimizer.recomputes
        row["MiB at most"] = most >> 20
    state = STATE * parameter_count(optimizer.network)
    wanted = weights(optimizer)
    for share in (0.6, 0.2):
        with rows.row(memory=f"{share:.0%} of what the pass took") as row:
            optimizer = None  # type: ignore[assignment]
            clear()
            optimizer = make_optimizer(where)
            with at_most(in_use(where) + state + int(share * (most - state)), where):
                optimizer.update(batch, reinforce())
            row["tokens a pass"], row["layers again"] = optimizer.pass_tokens, optimizer.recomputes
            found = weights(optimizer)
            row["weights apart"] = float((found - wanted).norm() / wanted.norm())
            check(row["weights apart"], 1e-5)


def make_optimizer(where: Where) -> Optimizer:
    network, _ = ready(where)
    settings = TrainingSettings(pack_tokens=4_096 if where.quick else 16_384, learning_rate=1e-5)
    return Optimizer(Policy(as_model(network), None), settings, source=find_source(SHIPPED)[0])


def weights(optimizer: Optimizer) -> torch.Tensor:
    return torch.cat([p.detach().flatten().cpu() for p in optimizer.descent.parameters])


def in_use(where: Where) -> int:
    """Bytes now: of tensors on the card, or of this process."""
    if where.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    return _of_process("VmSize")


def most_in_use(where: Where) -> int:
    return torch.cuda.max_memory_allocated() if where.device.type == "cuda" else _of_process("VmPeak")


def _of_process(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) << 10


@contextmanager
def at_most(limit: int, where: Where) -> Iterator[None]:
    """No allocation may pass `limit` bytes within: a limit of the card's allocator, or of the process."""
    if where.device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.get_device_properties().total_memory)
        try:
            yield
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
        return
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
