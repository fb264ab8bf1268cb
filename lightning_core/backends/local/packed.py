"""Rows as keys and values in slots: the memory of networks whose attention alone carries the past."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch.nn import functional

from lightning_core.backends.local.attention import Plan
from lightning_core.backends.local.cache import Prefixes, Shape, Slots
from lightning_core.backends.local.memory import Run


class PackedDecoder(Protocol):
    """A forward pass over packed tokens."""

    def logits(
        self, tokens: torch.Tensor, positions: torch.Tensor, plan: Plan, keep: torch.Tensor
    ) -> torch.Tensor:
        """tokens and positions (T,) int64, keep (N,) indices into them → next-token logits (N, V)."""


class PackedMemory:
    """All tokens of a step in one sequence (`memory.Memory`)."""

    whole = False

    def __init__(self, decoder: PackedDecoder, slots: Slots, prefixes: Prefixes) -> None:
        self._decoder, self.slots, self.prefixes = decoder, slots, prefixes
        self.holds, self.reserve, self.shrink = slots.holds, slots.reserve, slots.shrink
        self.move, self.find = slots.move, prefixes.find

    @property
    def rows(self) -> int:
        return self.slots.rows

    @property
    def hit_tokens(self) -> int:
        return self.prefixes.hit_tokens

    def load(self, found: list[int], row: int) -> int:
        return self.prefixes.load(found, self.slots, row)

    def save(self, ids: list[int], row: int) -> None:
        self.prefixes.save(ids, self.slots, row)

    def free(self, row: int, *, failed: bool) -> None:
        if failed:
            self.slots.wipe(row)

    def forget(self, in_use: int) -> None:
        self.prefixes.clear()
        if not in_use:
            self.slots.reset()

    def restore(self, row: int, ids: Sequence[int]) -> None:
        """A step writes the same places again, so nothing is lost."""

    def logits(self, lengths: list[int], runs: list[Run], tokens: list[int], keep: list[int]) -> torch.Tensor:
        device = self.slots.shape.device
        plan = StepPlan(self.slots, lengths, runs)
        return self._decoder.logits(
            torch.tensor(tokens, device=device),
            plan.positions,
            plan,
            torch.tensor(keep, dtype=torch.int64, device=device),
        )


def packed_memory(
    decoder: PackedDecoder, shape: Shape, rows: int, slot_bytes: int, prefix_bytes: int
) -> PackedMemory:
    """Empty, for at most `rows` rows."""
    slots, prefixes = Slots(shape, rows, max_bytes=slot_bytes), Prefixes(shape, max_bytes=prefix_bytes)
    return PackedMemory(decoder, slots, prefixes)


class StepPlan:
    """The attention of one engine step: one decoding token for each of the first B rows, then runs of prompt
    tokens, T = B + the runs' tokens in that order.

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
        groups = query.shape[1] // keys.shape[1]
        if keys.is_cuda and groups > 1:  # else torch takes the path that writes all scores out
            keys, values = keys.repeat_interleave(groups, 1), values.repeat_interleave(groups, 1)
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
