"""Log-probabilities of chosen tokens from logits, and their gradient.

    chosen_n = x[r_n, t_n] - log sum_v exp x[r_n, v]        with x = logits / scales
    d chosen_n / d logits[r_n, v] = ((v = t_n) - softmax(x[r_n])_v) / scales[r_n]

Written out, autograd makes ten tensors of the logits' size, each larger than a processor's cache. Here a few
rows at a time are taken through all of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

CACHED = 1 << 21
"""Bytes of the rows that are taken at a time on a processor; a GPU takes all at once."""


def chosen_logprobs(
    logits: torch.Tensor, scales: torch.Tensor, rows: torch.Tensor, targets: torch.Tensor
) -> torch.Tensor:
    """logits (U, V) in any number format, scales (U,), a row and a token for each of n entries → (n,) in
    float32. The gradient is the logits'."""
    found: torch.Tensor = _Chosen.apply(logits, scales, rows, targets)  # type: ignore[no-untyped-call]
    return found


class _Chosen(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, scales: torch.Tensor, rows: torch.Tensor, targets: torch.Tensor
    ) -> torch.Tensor:
        sums = torch.empty_like(scales)
        for part in _parts(logits):
            sums[part] = _scaled(logits, scales, part).logsumexp(-1)
        ctx.save_for_backward(logits, scales, rows, targets, sums)
        return logits[rows, targets].float() / scales[rows] - sums[rows]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        logits, scales, rows, targets, sums = ctx.saved_tensors
        grad = grad / scales[rows]
        whole = torch.zeros_like(scales).index_add_(0, rows, grad)[:, None]
        order = rows.argsort()
        ordered, found = rows[order], torch.empty_like(logits)
        for part in _parts(logits):
            shares = _scaled(logits, scales, part).sub_(sums[part, None]).exp_().mul_(-whole[part])
            first, last = torch.searchsorted(
                ordered, torch.tensor([part.start, part.stop], device=rows.device)
            )
            own = order[first:last]
            shares.index_put_((rows[own] - part.start, targets[own]), grad[own], accumulate=True)
            found[part] = shares
        return found, None, None, None


def _parts(logits: torch.Tensor) -> Iterator[slice]:
    """Slices of rows that fit into the cache together."""
    count, vocabulary = logits.shape
    size = max(1, CACHED // (4 * vocabulary)) if logits.device.type == "cpu" else max(1, count)
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


def _scaled(logits: torch.Tensor, scales: torch.Tensor, part: slice) -> torch.Tensor:
    """A copy of these rows in float32, each divided by its scale."""
    return logits[part].to(torch.float32, copy=True).div_(scales[part, None])
