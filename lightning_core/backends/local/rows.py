"""Which reply has which row (admission, prefill, compaction), and who sees whom in one engine step.

Rows 0 to B-1 decode, so that decoding reads one contiguous block. Prompts of a step take the rows after them;
at most one, the last, does not fit the step's budget and goes on in the next step.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from lightning_core.backends.chat.completion import Completion
from lightning_core.backends.local.cache import Prefixes, Slots

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Run:
    """Prompt tokens of one row: `count` of them, the first at position `start`."""

    row: int
    start: int
    count: int


@dataclass(slots=True)
class Prompt:
    """What a row begins with and how much of it is in the row."""

    completion: Completion
    ids: list[int]
    row: int
    done: int

    @property
    def left(self) -> int:
        return len(self.ids) - self.done


class Rows:
    """The replies in flight, and where their keys and values lie."""

    def __init__(self, slots: Slots, prefixes: Prefixes) -> None:
        self.slots, self.prefixes = slots, prefixes
        self.decoding: list[Completion] = []
        """By row."""
        self.prompts: list[Prompt] = []
        """Those of the present step; between steps, the one that the budget cut."""

    def __len__(self) -> int:
        return len(self.decoding) + len(self.prompts)

    def lengths(self) -> list[int]:
        """Tokens in each decoding row: its last id has not been through the model yet."""
        return [len(c.prompt_ids) + len(c.ids) - 1 for c in self.decoding]

    def admit(self, waiting: deque[Completion], budget: int, version: int, *, held: bool) -> list[Completion]:
        """Take prompts in order of arrival while `budget` tokens last. Returns those that there is no memory
        for, which end with an error.

        A prompt whose next block another one of this step computes waits for the next step, and finds it.
        One that the memory has no room for beside the others lets none pass.
        While `held`, only further choices of requests that are being answered are taken.
        """
        budget -= sum(p.left for p in self.prompts)
        computing = {self.prefixes.find(p.ids)[1] for p in self.prompts}
        deferred: list[Completion] = []
        refused: list[Completion] = []
        if waiting and len(self) >= self.slots.rows:
            self.slots.shrink(self._longest(begun(waiting[0])), len(self))
        try:
            while waiting and budget > 0 and len(self) < self.slots.rows:
                completion = waiting.popleft()
                if completion.cancelled:
                    continue
                fresh = completion.request.policy_version is None
                if held and fresh:
                    deferred.append(completion)
                    continue
                ids = begun(completion)
                if len(self) and not self.slots.holds(len(self) + 1, self._longest(ids)):
                    deferred.append(completion)
                    break
                found, missing = self.prefixes.find(ids)
                if missing is not None and missing in computing:
                    deferred.append(completion)
                    continue
                computing.add(missing)
                if fresh:
                    completion.request.policy_version = version
                try:
                    budget -= self._place(Prompt(completion, ids, len(self), 0), found)
                except Exception as error:  # boundary: this reply fails, the others go on
                    logger.exception("a prompt of %d tokens got no row", len(ids))
                    completion.error = error
                    refused.append(completion)
        finally:
            waiting.extendleft(reversed(deferred))
        return refused

    def _longest(self, ids: Sequence[int] = ()) -> int:
        """Tokens of the longest row after this step, also with such a prompt."""
        return 1 + max([*self.lengths(), *(len(p.ids) for p in self.prompts), len(ids)])

    def _place(self, prompt: Prompt, found: list[int]) -> int:
        """Give a reply its row, with the blocks that are known; returns the tokens still to compute."""
        self.slots.reserve(self._longest(prompt.ids), len(self) + 1)
        prompt.done = self.prefixes.load(found, self.slots, prompt.row)
        self.prompts.append(prompt)
        return prompt.left

    def next_runs(self, budget: int) -> tuple[list[Run], int]:
        """This step's prompt tokens, and how many of the prompts they complete (the first ones)."""
        runs, finished = [], 0
        for prompt in self.prompts:
            count = min(budget, prompt.left)
            runs.append(Run(prompt.row, prompt.done, count))
            budget -= count
            prompt.done += count
            finished += prompt.left == 0
        return runs, finished

    def promote(self, finished: int) -> None:
        """The first `finished` prompts start decoding; their rows follow the decoding ones in order."""
        for prompt in self.prompts[:finished]:
            self.prefixes.save(prompt.ids, self.slots, prompt.row)
            self.decoding.append(prompt.completion)
        self.prompts = self.prompts[finished:]

    def leave(self, row: int) -> None:
        """Free a decoding row between steps: keep its blocks for a next turn, close the gap with the last
        rows. Of a reply that failed nothing is kept, nor any other block, since it may have shared one."""
        completion = self.decoding[row]
        if completion.error is None:
            self.prefixes.save(completion.prompt_ids + completion.ids[:-1], self.slots, row)
        else:
            self.prefixes.clear()
            self.slots.wipe(row)
        last = len(self.decoding) - 1
        if row != last:
            moved = self.decoding[last]
            self.slots.move(last, row, self.lengths()[last])
            self.decoding[row] = moved
        self.decoding.pop()
        for prompt in self.prompts:  # at most one, in the row after the decoding ones
            self.slots.move(prompt.row, last, prompt.done)
            prompt.row = last

    def drop_cancelled(self) -> bool:
        """Free the rows of cancelled replies; whether there were any that decoded."""
        rows = [row for row, completion in enumerate(self.decoding) if completion.cancelled]
        for row in reversed(rows):
            self.leave(row)
        self.prompts = [prompt for prompt in self.prompts if not prompt.completion.cancelled]
        return bool(rows)

    def put_back(self, waiting: deque[Completion]) -> bool:
        """Put the last rows back in line where all have grown out of the memory; whether any decoded.

        Their tokens are computed again, less those that the prefixes keep.
        """
        decoding = len(self.decoding)
        while len(self) > 1 and not self.slots.holds(len(self), self._longest()):
            if self.prompts:
                waiting.appendleft(self.prompts.pop().completion)
            else:
                waiting.appendleft(self.decoding[-1])
                self.leave(len(self.decoding) - 1)
        return len(self.decoding) < decoding

    def drop_failed_prompts(self) -> None:
        """Between steps: free the row of a prompt that the budget cut and that has failed."""
        for prompt in self.prompts:
            if prompt.completion.error is not None:
                self.slots.wipe(prompt.row)
        self.prompts = [prompt for prompt in self.prompts if prompt.completion.error is None]

    def forget(self) -> None:
        """Drop what older weights computed, and the length that rows have grown to."""
        self.prefixes.clear()
        if not len(self):
            self.slots.reset()

    def clear(self) -> list[Completion]:
        """Free every row; returns what was in them."""
        replies = [*self.decoding, *(prompt.completion for prompt in self.prompts)]
        self.decoding, self.prompts = [], []
        return replies


def begun(completion: Completion) -> list[int]:
    """The prompt, and what was already replied to it."""
    return completion.prompt_ids + completion.ids if completion.ids else completion.prompt_ids


# attention -------------------------------------------------------------------------------
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
