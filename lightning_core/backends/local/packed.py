"""Rows as keys and values in slots: the memory of networks whose attention alone carries the past."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch.nn import functional

from lightning_core.backends.local.attention import AttentionCall, AttentionForm, Plan, Sees, weights
from lightning_core.backends.local.cache import Prefixes, Shape, Slots
from lightning_core.backends.local.memory import TokenRun

logger = logging.getLogger(__name__)
SPARE = 512
"""Places that one product may read more than two, which take longer to start."""
WHOLE = 2.5
"""Places that one product may read in place of each that it would have to copy."""
Work = Callable[[], torch.Tensor]
Capture = Callable[[Work], Work]
"""Makes of work what does it again, with the same tensors, on what is in them by then."""


class PackedDecoder(Protocol):
    """A forward pass over packed tokens."""

    def logits(
        self, tokens: torch.Tensor, positions: torch.Tensor, plan: Plan, keep: torch.Tensor
    ) -> torch.Tensor:
        """tokens and positions (T,) int64, keep (N,) indices into them → next-token logits (N, V)."""


class PackedMemory:
    """All tokens of a step in one sequence (`memory.Memory`)."""

    whole = False

    def __init__(
        self, decoder: PackedDecoder, slots: Slots, prefixes: Prefixes, steps: DecodeSteps | None
    ) -> None:
        """`steps` takes the steps without prompts, where given."""
        self.decoder, self.slots, self.prefixes, self.steps = decoder, slots, prefixes, steps
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

    def logits(
        self, lengths: list[int], runs: list[TokenRun], tokens: list[int], keep: list[int]
    ) -> torch.Tensor:
        if not runs and self.steps is not None:
            logits = self.steps.logits(tokens, lengths)
            if logits is not None:
                return logits
        device = self.slots.shape.device
        plan = step_plan(self.slots, lengths, runs)
        return self.decoder.logits(
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
    steps = DecodeSteps(decoder, slots, Graphs(shape.device)) if shape.device.type == "cuda" else None
    return PackedMemory(decoder, slots, prefixes, steps)


@dataclass(frozen=True, slots=True)
class RowSpan:
    """Rows from `start` to `end`, which read `longest` tokens each."""

    start: int
    end: int
    longest: int

    @property
    def places(self) -> int:
        """Tokens that are read."""
        return (self.end - self.start) * self.longest

    def __or__(self, other: RowSpan) -> RowSpan:
        """Joined with the span after it."""
        return RowSpan(self.start, other.end, max(self.longest, other.longest))


class StepPlan:
    """The attention of one engine step: one decoding token for each of the first B rows, then runs of prompt
    tokens, T = B + the runs' tokens in that order.

    New keys and values are written to their places first, so a token sees itself and all before it in its
    row, as far as the layer's window goes.
    """

    def __init__(
        self,
        slots: Slots,
        rows: torch.Tensor,
        positions: torch.Tensor,
        spans: Sequence[RowSpan],
        runs: list[TokenRun],
    ) -> None:
        """Rows and positions (T,) of the tokens, and the decoding rows in spans."""
        self._slots, self._rows, self._spans, self._runs = slots, rows, spans, runs
        self._decoding = len(rows) - sum(run.count for run in runs)
        self._device, self._dtype = slots.shape.device, slots.shape.dtype
        self.positions = positions
        self._places = slots.places(rows, positions)
        self._calls = iter(slots.shape.calls)
        self._biases: dict[tuple[Sees | None, int], list[torch.Tensor]] = {}
        """(B K, 1, longest) of each span, for so many key heads K."""
        self._masks: dict[Sees | None, list[torch.Tensor | None]] = {}
        """Masks of each run."""

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, form: AttentionForm
    ) -> torch.Tensor:
        """Attends to the tokens that the survey found; takes the rest from `form`."""
        call = next(self._calls)
        keys, values = self._write(call, key, value)  # (rows, K, capacity, D or V)
        parts = []
        if self._decoding:
            parts += self._decode(query, keys, values, form, call.sees)
        at = self._decoding
        if self._runs and call.sees not in self._masks:
            self._masks[call.sees] = [_mask(run, call.sees, self._device) for run in self._runs]
        for index, run in enumerate(self._runs):
            mask = self._masks[call.sees][index]
            own = query[at : at + run.count]
            parts.append(_prefill(own, keys[run.row], values[run.row], run, mask, form))
            at += run.count
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _write(
        self, call: AttentionCall, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Put new keys and values into their places; returns all of this layer."""
        slots, shape = self._slots, self._slots.shape
        keys, values = slots.keys[call.slot], slots.values[call.slot]
        if (call.heads, call.key_size, call.value_size) == (shape.heads, shape.size, shape.size):
            both = torch.cat((key, value), 1).view(-1, shape.size)
            slots.flat[call.slot].index_copy_(0, self._places, both)
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
        form: AttentionForm,
        sees: Sees | None,
    ) -> list[torch.Tensor]:
        heads, size = query.shape[1:]
        kv_heads = keys.shape[1]
        if (sees, kv_heads) not in self._biases:
            self._biases[sees, kv_heads] = [
                self._bias(span, sees).repeat_interleave(kv_heads, 0) for span in self._spans
            ]
        outs = []
        for span, bias in zip(self._spans, self._biases[sees, kv_heads], strict=True):
            rows = span.end - span.start
            own_keys = keys[span.start : span.end].flatten(0, 1)[:, : span.longest]
            own_values = values[span.start : span.end].flatten(0, 1)[:, : span.longest]
            grouped = query[span.start : span.end].reshape(rows * kv_heads, heads // kv_heads, size)
            sinks = None if form.sinks is None else form.sinks.view(kv_heads, -1, 1).repeat(rows, 1, 1)
            seen = weights(grouped, own_keys, bias, form, sinks)
            outs.append(torch.bmm(seen, own_values).view(rows, heads, -1))
        return outs

    def _bias(self, span: RowSpan, sees: Sees | None) -> torch.Tensor:
        places = torch.arange(span.longest, device=self._device)
        own = self.positions[span.start : span.end, None]
        hidden = places > own
        if sees is not None:
            hidden |= ~sees(own, places)
        bias = torch.zeros(hidden.shape, dtype=self._dtype, device=self._device)
        return bias.masked_fill_(hidden, float("-inf"))[:, None]


def step_plan(slots: Slots, lengths: list[int], runs: list[TokenRun]) -> StepPlan:
    """The plan of a step, before which each of the B decoding rows has so many tokens."""
    rows, positions = list(range(len(lengths))), list(lengths)
    for run in runs:
        rows += [run.row] * run.count
        positions += range(run.start, run.start + run.count)
    placed = torch.tensor([rows, positions], device=slots.shape.device)
    spans = whole_rows(spans_of([length + 1 for length in lengths]), slots)
    return StepPlan(slots, placed[0], placed[1], spans, runs)


def whole_rows(spans: Sequence[RowSpan], slots: Slots) -> list[RowSpan]:
    """The spans, to be read up to their rows' end where that is cheaper.

    On a processor a product in bfloat16 takes whole rows as they lie, and copies parts of them first, which
    costs more than to read 2.5 times as much. Keys behind a row's own are masked.
    """
    if slots.shape.dtype != torch.bfloat16 or slots.memory.is_cuda:
        return list(spans)
    return [
        replace(span, longest=slots.capacity) if WHOLE * span.longest >= slots.capacity else span
        for span in spans
    ]


def spans_of(lengths: Sequence[int]) -> list[RowSpan]:
    """The rows in spans, each of which is a product of its own.

    Rows of unlike length in one product all read as much as the longest: one of 3,000 tokens among 31 of 100
    makes the step read 96,000 places in place of 6,100. Rows of like length are joined first, so that a long
    one does not take the short ones behind it one by one.
    """
    like: list[RowSpan] = []
    for row, length in enumerate(lengths):
        _add(like, RowSpan(row, row + 1, length), least=0.5)
    spans: list[RowSpan] = []
    for span in like:
        _add(spans, span, least=0.0)
    return spans


def _add(spans: list[RowSpan], span: RowSpan, least: float) -> None:
    """Join a span with the last ones, as long as no product reads more than `SPARE` places in vain for it and
    the shorter is at least this share of the longer."""
    while spans:
        before = spans[-1]
        joined = before | span
        alike = min(before.longest, span.longest) >= least * joined.longest
        if not alike or joined.places > before.places + span.places + SPARE:
            break
        span = joined
        spans.pop()
    spans.append(span)


class DecodeSteps:
    """Steps that only decode, of a few fixed sizes, each captured once and replayed from then on.

    A step of a small network starts hundreds of kernels that compute for microseconds, so starting them takes
    most of the time; a CUDA graph starts all at once. It keeps shapes and addresses, so a step is rounded up:
    rows that are not in use decode a token of no meaning at their beginning, which their next reply replaces.
    """

    def __init__(self, decoder: PackedDecoder, slots: Slots, capture: Capture) -> None:
        self._decoder, self._slots, self._capture = decoder, slots, capture
        self._made: dict[tuple[int, int], tuple[torch.Tensor, Work]] = {}
        """For so many rows of at most so many tokens: tokens and lengths (2, B), and the step."""
        self._memory: torch.Tensor | None = slots.memory
        """The slots that the steps were made on; None: steps can't be captured here."""

    def logits(self, tokens: list[int], lengths: list[int]) -> torch.Tensor | None:
        """Next-token logits (B, V) of the first B rows, valid until the next call; None if steps can't be
        captured here."""
        if self._memory is None:
            return None
        if self._memory is not self._slots.memory:  # rows have got longer or shorter
            self._made.clear()
            self._memory = self._slots.memory
        sizes = self._sizes(len(tokens), max(lengths) + 1)
        spare = [0] * (sizes[0] - len(tokens))
        given = torch.tensor([tokens + spare, lengths + spare])
        if sizes not in self._made:
            try:
                self._made[sizes] = self._make(given, sizes[1])
            except Exception:  # boundary: whatever a network does that can't be captured
                logger.warning("decoding steps can't be captured as CUDA graphs here", exc_info=True)
                self._memory = None
                self._made.clear()
                return None
        inputs, step = self._made[sizes]
        inputs.copy_(given)
        return step()[: len(tokens)]

    def _sizes(self, rows: int, length: int) -> tuple[int, int]:
        """Rounded up by at most a fourth, where they are not small."""
        return min(self._slots.rows, _rounded(rows, 1)), min(self._slots.capacity, _rounded(length, 64))

    def _make(self, given: torch.Tensor, longest: int) -> tuple[torch.Tensor, Work]:
        slots = self._slots
        inputs = given.to(slots.shape.device)
        rows = torch.arange(inputs.shape[1], device=inputs.device)

        def step() -> torch.Tensor:
            plan = StepPlan(slots, rows, inputs[1], [RowSpan(0, len(rows), longest)], [])
            return self._decoder.logits(inputs[0], inputs[1], plan, rows)

        return inputs, self._capture(step)


def _rounded(count: int, least: int) -> int:
    """Up to the next of four sizes between powers of two, and to a multiple of `least`."""
    unit = max(least, 1 << max(0, (count - 1).bit_length() - 3))
    return -(-count // unit) * unit


class Graphs:
    """Captures work as CUDA graphs, which share their memory: one is done before the next is begun."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = None
        self._stream: torch.cuda.Stream | None = None

    def __call__(self, work: Work) -> Work:
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
            self._pool = torch.cuda.graph_pool_handle()
        present = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(present)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream):
            work()  # libraries take what they need before the capture
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                out = work()
            except BaseException:
                with suppress(RuntimeError):
                    graph.capture_end()
                raise
            graph.capture_end()
        present.wait_stream(self._stream)

        def replay() -> torch.Tensor:
            graph.replay()
            return out

        return replay


def _prefill(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    run: TokenRun,
    mask: torch.Tensor | None,
    form: AttentionForm,
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
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    form: AttentionForm,
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


def _mask(run: TokenRun, sees: Sees | None, device: torch.device) -> torch.Tensor | None:
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
