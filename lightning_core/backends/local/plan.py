"""The engine's attention: one decoding token for each of the first B rows, then runs of prompt tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from lightning_core.backends.local.cache import Slots


@dataclass(frozen=True, slots=True)
class Run:
    """Prompt tokens of one row: `count` of them, the first at position `start`."""

    row: int
    start: int
    count: int


class StepPlan:
    """Who sees whom in one engine step: T = B + the runs' tokens, in that order.

    New keys and values are written to their places first, so a token sees itself and all before it in its
    row.
    """

    def __init__(self, slots: Slots, lengths: list[int], runs: list[Run]) -> None:
        """`lengths[i]` is the number of tokens in row i before this step, for the B decoding rows."""
        self._slots, self._decoding, self._runs = slots, len(lengths), runs
        device, dtype = slots.shape.device, slots.shape.dtype
        rows = list(range(len(lengths)))
        positions = list(lengths)
        for run in runs:
            rows += [run.row] * run.count
            positions += range(run.start, run.start + run.count)
        self.positions = torch.tensor(positions, device=device)
        self._places = slots.places(torch.tensor(rows, device=device), self.positions)
        self._longest = max(lengths, default=0) + 1
        self._bias: torch.Tensor | None = None  # (B * K, 1, longest)
        if lengths:
            hidden = torch.arange(self._longest, device=device) > self.positions[: len(lengths), None]
            bias = torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, float("-inf"))
            self._bias = bias.repeat_interleave(slots.shape.heads, 0)[:, None]
        self._masks = [_causal(run, device) for run in runs]

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        size = query.shape[-1]
        self._slots.flat_keys[layer].index_copy_(0, self._places, key.reshape(-1, size))
        self._slots.flat_values[layer].index_copy_(0, self._places, value.reshape(-1, size))
        parts = []
        if self._decoding:
            parts.append(self._decode(layer, query[: self._decoding], scale))
        at = self._decoding
        for run, mask in zip(self._runs, self._masks, strict=True):
            parts.append(self._prefill(layer, query[at : at + run.count], run, mask, scale))
            at += run.count
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _decode(self, layer: int, query: torch.Tensor, scale: float) -> torch.Tensor:
        rows, heads, size = query.shape
        shape = self._slots.shape
        flat = (rows * shape.heads, self._slots.capacity, size)
        keys = self._slots.keys[layer][:rows].view(flat)[:, : self._longest]
        values = self._slots.values[layer][:rows].view(flat)[:, : self._longest]
        grouped = query.reshape(rows * shape.heads, heads // shape.heads, size)
        assert self._bias is not None
        weights = torch.baddbmm(self._bias, grouped, keys.transpose(1, 2), alpha=scale).softmax(-1)
        return torch.bmm(weights, values).view(rows, heads, size)

    def _prefill(
        self, layer: int, query: torch.Tensor, run: Run, mask: torch.Tensor | None, scale: float
    ) -> torch.Tensor:
        end = run.start + run.count
        keys = self._slots.keys[layer][run.row, :, :end][None]
        values = self._slots.values[layer][run.row, :, :end][None]
        out = functional.scaled_dot_product_attention(
            query.transpose(0, 1)[None],
            keys,
            values,
            attn_mask=mask,
            is_causal=mask is None,
            scale=scale,
            enable_gqa=query.shape[1] != keys.shape[1],
        )
        return out[0].transpose(0, 1)


def _causal(run: Run, device: torch.device) -> torch.Tensor | None:
    """True where a run's token (count,) may see its row's tokens (start + count,); None for the plain
    triangle."""
    if run.start == 0:
        return None
    end = run.start + run.count
    return torch.ones((run.count, end), dtype=torch.bool, device=device).tril_(run.start)
