"""Rows as keys and values in slots: the memory of networks whose attention alone carries the past."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch.nn import functional

from lightning_core.backends.local.attention import Call, Form, Plan, Sees, weights
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
    row, as far as the layer's window goes.
    """

    def __init__(self, slots: Slots, lengths: list[int], runs: list[Run]) -> None:
        """`lengths[i]` is the number of tokens in row i before this step, for the B decoding rows."""
        self._slots, self._decoding, self._runs = slots, len(lengths), runs
        self._device, self._dtype = slots.shape.device, slots.shape.dtype
        rows = list(range(len(lengths)))
        positions = list(lengths)
        for run in runs:
            rows += [run.row] * run.count
            positions += range(run.start, run.start + run.count)
        self.positions = torch.tensor(positions, device=self._device)
        self._rows = torch.tensor(rows, device=self._device)
        self._places = slots.places(self._rows, self.positions)
        self._longest = max(lengths, default=0) + 1
        self._calls = iter(slots.shape.calls)
        self._biases: dict[Sees | None, torch.Tensor] = {}
        """(B, 1, longest)"""
        self._masks: dict[Sees | None, list[torch.Tensor | None]] = {}
        """Masks of each run."""

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, form: Form) -> torch.Tensor:
        """Attends to the tokens that the survey found; takes the rest from `form`."""
        call = next(self._calls)
        keys, values = self._write(call, key, value)  # (rows, K, capacity, D or V)
        parts = []
        if self._decoding:
            parts.append(self._decode(query[: self._decoding], keys, values, form, call.sees))
        at = self._decoding
        if self._runs and call.sees not in self._masks:
            self._masks[call.sees] = [_mask(run, call.sees, self._device) for run in self._runs]
        for index, run in enumerate(self._runs):
            mask = self._masks[call.sees][index]
            own = query[at : at + run.count]
            parts.append(_prefill(own, keys[run.row], values[run.row], run, mask, form))
            at += run.count
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _write(self, call: Call, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Put new keys and values into their places; returns all of this layer."""
        slots, shape = self._slots, self._slots.shape
        keys, values = slots.keys[call.slot], slots.values[call.slot]
        if (call.heads, call.key_size, call.value_size) == (shape.heads, shape.size, shape.size):
            slots.flat_keys[call.slot].index_copy_(0, self._places, key.reshape(-1, shape.size))
            slots.flat_values[call.slot].index_copy_(0, self._places, value.reshape(-1, shape.size))
            return keys, values
        keys = keys[:, : call.heads, :, : call.key_size]
        values = values[:, : call.heads, :, : call.value_size]
        keys[self._rows, :, self.positions] = key.to(keys.dtype)
        values[self._rows, :, self.positions] = value.to(values.dtype)
        return keys, values

    def _decode(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        form: Form,
        sees: Sees | None,
    ) -> torch.Tensor:
        rows, heads, size = query.shape
        kv_heads = keys.shape[1]
        if sees not in self._biases:
            self._biases[sees] = self._bias(sees)
        keys = keys[:rows].flatten(0, 1)[:, : self._longest]
        values = values[:rows].flatten(0, 1)[:, : self._longest]
        grouped = query.reshape(rows * kv_heads, heads // kv_heads, size)
        bias = self._biases[sees].repeat_interleave(kv_heads, 0)
        sinks = None if form.sinks is None else form.sinks.view(kv_heads, -1, 1).repeat(rows, 1, 1)
        seen = weights(grouped, keys, bias, form, sinks)
        return torch.bmm(seen, values).view(rows, heads, -1)

    def _bias(self, sees: Sees | None) -> torch.Tensor:
        places, own = torch.arange(self._longest, device=self._device), self.positions[: self._decoding, None]
        hidden = places > own
        if sees is not None:
            hidden |= ~sees(own, places)
        bias = torch.zeros(hidden.shape, dtype=self._dtype, device=self._device)
        return bias.masked_fill_(hidden, float("-inf"))[:, None]


def _prefill(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    run: Run,
    mask: torch.Tensor | None,
    form: Form,
) -> torch.Tensor:
    """query (n, H, D) of a run, keys (K, capacity, D) and values (K, capacity, V) of its row → (n, H, V)."""
    end = run.start + run.count
    keys, values = keys[:, :end], values[:, :end]
    groups = query.shape[1] // len(keys)
    if form.softcap is not None or form.sinks is not None:
        return _written_out(query, keys, values, mask, form)
    if keys.is_cuda and groups > 1:  # else torch takes the path that writes all scores out
        keys, values = keys.repeat_interleave(groups, 0), values.repeat_interleave(groups, 0)
    out = functional.scaled_dot_product_attention(
        query.transpose(0, 1)[None],
        keys[None],
        values[None],
        attn_mask=mask,
        is_causal=mask is None,
        scale=form.scale,
        enable_gqa=query.shape[1] != len(keys),
    )
    return out[0].transpose(0, 1)


def _written_out(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, form: Form
) -> torch.Tensor:
    count, heads, size = query.shape
    groups = heads // len(keys)
    if mask is None:
        mask = torch.ones((count, count), dtype=torch.bool, device=query.device).tril_()
    bias = torch.zeros(mask.shape, dtype=query.dtype, device=query.device).masked_fill_(~mask, float("-inf"))
    grouped = query.transpose(0, 1).reshape(len(keys), groups * count, size)
    sinks = None
    if form.sinks is not None:
        sinks = form.sinks.repeat_interleave(count).view(len(keys), groups * count, 1)
    seen = weights(grouped, keys, bias.repeat(groups, 1), form, sinks)
    return torch.bmm(seen, values).view(heads, count, -1).transpose(0, 1)


def _mask(run: Run, sees: Sees | None, device: torch.device) -> torch.Tensor | None:
    """True where a run's token (count,) may see its row's tokens (start + count,); None for the plain
    triangle."""
    end = run.start + run.count
    if sees is not None and sees.reach is not None and end <= sees.reach:
        sees = None
    if run.start == 0 and sees is None:
        return None
    seen = torch.ones((run.count, end), dtype=torch.bool, device=device).tril_(run.start)
    if sees is not None:
        places = torch.arange(end, device=device)
        seen &= sees(places[run.start :, None], places)
    return seen
