"""Rows as transformers' own caches: the memory of networks that keep state outside attention.

Each row has its state in a cache, in a batch with others. A batch is padded on the left where the network
takes that exactly; else only rows of one length run together. A row that enters or leaves changes no other
row's state. States can't be cut, so a prefix is known only as far as a prompt or a reply once went.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from lightning_core.backends.local.caches import (
    CachedNetwork,
    Traits,
    cache_bytes,
    join_caches,
    select_rows,
)
from lightning_core.backends.local.memory import TokenRun
from lightning_core.backends.local.packing import make_batches
from lightning_core.records.sequences import spell


@dataclass(slots=True)
class _Batch:
    """Rows whose states lie in one cache."""

    cache: Any
    rows: list[int | None]
    """Rows by place in the batch; None where the row has gone."""
    lengths: list[int]
    """Tokens of each."""

    def without(self, taken: Sequence[int]) -> list[int]:
        """Places of the rows that are still here, but for those taken."""
        return [place for place, row in enumerate(self.rows) if row is not None and place not in taken]

    def select(self, places: Sequence[int]) -> _Batch:
        """A copy of these rows."""
        lengths = [self.lengths[place] for place in places]
        cache = select_rows(self.cache, places, max(lengths))
        return _Batch(cache, [self.rows[place] for place in places], lengths)


@dataclass(frozen=True, slots=True)
class _Step:
    """Tokens of one row that go through the network in one pass."""

    row: int
    ids: Sequence[int]
    place: int
    """Place of the last token among all tokens of the engine's step."""
    begins: bool = False
    """Whether it is the last one of a prompt whose others were not known."""


class StateMemory:
    """Rows as states of transformers' own caches (`memory.Memory`)."""

    def __init__(
        self, network: PreTrainedModel, traits: Traits, rows: int, slot_bytes: int, prefix_bytes: int
    ) -> None:
        self._run, self._traits = CachedNetwork(network), traits
        self.rows, self._slot_bytes = rows, slot_bytes
        self._batches: list[_Batch] = []
        self._prefixes = _Prefixes(prefix_bytes)
        self._begun: dict[int, _Batch] = {}
        """State before the last token of a prompt, by row."""
        self.hit_tokens = 0

    @property
    def whole(self) -> bool:
        return not self._traits.continues

    def holds(self, rows: int, length: int) -> bool:
        return rows * self._bytes(length) <= self._slot_bytes

    def _bytes(self, length: int) -> int:
        return self._traits.row_bytes + length * self._traits.token_bytes

    def reserve(self, length: int, in_use: int) -> None:
        """States take their memory as they grow."""

    def shrink(self, length: int, in_use: int) -> None:
        """The number of rows never depends on their length."""

    # prefixes
    def find(self, ids: list[int]) -> tuple[_Batch | None, bytes | None]:
        text = spell(ids)
        found = self._prefixes.find(text[:-4], part=self._traits.continues)
        covered = found is not None and found.lengths[0] == len(ids) - 1
        known = covered or self._bytes(len(ids)) > self._prefixes.max_bytes
        return found, None if known else text

    def load(self, found: _Batch | None, row: int) -> int:
        self.free(row, failed=False)
        if found is None:
            return 0
        batch = found.select([0])
        batch.rows = [row]
        self._batches.append(batch)
        self.hit_tokens += batch.lengths[0]
        return batch.lengths[0]

    def save(self, ids: list[int], row: int) -> None:
        begun = self._begun.pop(row, None)
        if begun is not None:
            self._prefixes.save(spell(ids[: begun.lengths[0]]), begun)
        elif self._traits.continues and spell(ids[:-1]) not in self._prefixes:
            batch, place = self._find(row)
            self._prefixes.save(spell(ids), batch.select([place]))

    def forget(self, in_use: int) -> None:
        self._prefixes.clear()
        self._begun.clear()
        if not in_use:
            self._batches = []

    # rows
    def move(self, source: int, target: int, length: int) -> None:
        self.free(target, failed=False)
        batch, place = self._find(source)
        batch.rows[place] = target

    def free(self, row: int, *, failed: bool) -> None:
        """The rows of a batch never meet, so a failed one needs no more than others."""
        self._begun.pop(row, None)
        for batch in self._batches:
            batch.rows = [None if own == row else own for own in batch.rows]
        self._batches = [batch for batch in self._batches if batch.without(())]

    def restore(self, row: int, ids: Sequence[int]) -> None:
        self.free(row, failed=True)
        if ids:
            self._begin([_Step(row, ids, 0)])

    def _find(self, row: int) -> tuple[_Batch, int]:
        return next((batch, batch.rows.index(row)) for batch in self._batches if row in batch.rows)

    # steps
    def logits(
        self, lengths: list[int], runs: list[TokenRun], tokens: list[int], keep: list[int]
    ) -> torch.Tensor:
        """The last token of each prompt goes with the decoding ones: the state before it serves whoever asks
        the same."""
        begins, steps = [], [_Step(row, [tokens[row]], row) for row in range(len(lengths))]
        wanted, at, found = set(keep), len(lengths), dict[int, torch.Tensor]()
        for run in runs:
            own, last = tokens[at : at + run.count], at + run.count - 1
            at += run.count
            ends = [own.pop()] if last in wanted and run.start + run.count > 1 else []
            if own and run.start:
                self._extend(run.row, own)
            elif own:
                begins.append(_Step(run.row, own, last))
            if ends:
                steps.append(_Step(run.row, ends, last, begins=bool(own)))
        for places in make_batches([len(step.ids) for step in begins]):
            found |= self._begin([begins[place] for place in places])
        for step in steps:
            if step.begins and self._prefixes.max_bytes:
                batch, place = self._find(step.row)
                self._begun[step.row] = batch.select([place])
        for part in self._together(steps):
            found |= self._step(part)
        if not keep:  # parts of prompts alone
            return torch.empty(0, 0)
        return torch.stack([found[place] for place in keep])

    def _begin(self, steps: Sequence[_Step]) -> dict[int, torch.Tensor]:
        """Rows from their first token on; the logits after the last one of each."""
        if not self._traits.pads and len({len(step.ids) for step in steps}) > 1:
            return {place: row for step in steps for place, row in self._begin([step]).items()}
        logits, cache = self._run([step.ids for step in steps], None, [0] * len(steps))
        lengths = [len(step.ids) for step in steps]
        self._batches.append(_Batch(cache, [step.row for step in steps], lengths))
        return {step.place: row for step, row in zip(steps, logits, strict=True)}

    def _extend(self, row: int, ids: Sequence[int]) -> None:
        """Several tokens more, which the network must take."""
        batch = self._take([row])
        _, batch.cache = self._run([ids], batch.cache, batch.lengths)
        batch.lengths = [batch.lengths[0] + len(ids)]

    def _together(self, steps: list[_Step]) -> list[list[_Step]]:
        """Steps of rows that run in one batch."""
        if self._traits.pads:
            return [steps] if steps else []
        by_length: dict[int, list[_Step]] = {}
        for step in steps:
            batch, place = self._find(step.row)
            by_length.setdefault(batch.lengths[place], []).append(step)
        return list(by_length.values())

    def _step(self, steps: Sequence[_Step]) -> dict[int, torch.Tensor]:
        """One token more for each row; the logits after it."""
        by_row = {step.row: step for step in steps}
        batch = self._take(by_row)
        steps = [by_row[row] for row in batch.rows if row is not None]
        logits, batch.cache = self._run([step.ids for step in steps], batch.cache, batch.lengths)
        batch.lengths = [length + 1 for length in batch.lengths]
        return {step.place: row for step, row in zip(steps, logits, strict=True)}

    def _take(self, rows: Collection[int]) -> _Batch:
        """One batch of exactly these rows, in any order."""
        parts, others = list[_Batch](), list[_Batch]()
        for batch in self._batches:
            places = [place for place, row in enumerate(batch.rows) if row in rows]
            if len(places) == len(batch.rows):
                parts.append(batch)
                continue
            parts += [batch.select(places)] if places else []
            rest = batch.without(places)
            others += [batch.select(rest) if places else batch] if rest else []
        if len(parts) > 1:
            lengths = [length for part in parts for length in part.lengths]
            cache = join_caches([part.cache for part in parts], max(lengths))
            parts = [_Batch(cache, [row for part in parts for row in part.rows], lengths)]
        self._batches = [*others, *parts]
        return parts[0]


class _Prefixes:
    """States after prompts and replies, by their tokens; least recently used dropped first."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._states: OrderedDict[bytes, tuple[_Batch, int]] = OrderedDict()
        self._bytes = 0

    def find(self, text: bytes, *, part: bool) -> _Batch | None:
        """The state after the longest known beginning of `text`; after all of it, without `part`."""
        known = [text] if not part else sorted((key for key in self._states if text.startswith(key)), key=len)
        if not known or known[-1] not in self._states:
            return None
        self._states.move_to_end(known[-1])
        return self._states[known[-1]][0]

    def __contains__(self, text: bytes) -> bool:
        return text in self._states

    def save(self, text: bytes, state: _Batch) -> None:
        size = cache_bytes(state.cache)
        if size > self.max_bytes:
            return
        self._bytes += size - self._states.pop(text, (None, 0))[1]
        self._states[text] = state, size
        while self._bytes > self.max_bytes:
            _, (_, size) = self._states.popitem(last=False)
            self._bytes -= size

    def clear(self) -> None:
        self._states.clear()
        self._bytes = 0
