"""Which reply has which row: admission, prefill, compaction.

Rows 0 to B-1 decode, so that decoding reads one contiguous block. Prompts of a step take the rows after them;
at most one, the last, does not fit the step's budget and goes on in the next step.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from lightning_core.backends.local.memory import Memory, TokenRun
from lightning_core.backends.serving.completion import Completion

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class RowPrompt:
    """The beginning of a row, and how much of it is in the row."""

    completion: Completion
    ids: list[int]
    row: int
    done: int

    @property
    def left(self) -> int:
        return len(self.ids) - self.done


class Rows:
    """The replies in flight, and the memory of what their rows have read."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.decoding: list[Completion] = []
        """Completions by row."""
        self.prompts: list[RowPrompt] = []
        """Prompts of the present step; between steps, the one that the budget cut."""

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
        computing = {self.memory.find(p.ids)[1] for p in self.prompts}
        deferred: list[Completion] = []
        refused: list[Completion] = []
        if waiting and len(self) >= self.memory.rows:
            self.memory.shrink(self._longest(begun(waiting[0])), len(self))
        try:
            while waiting and budget > 0 and len(self) < self.memory.rows:
                completion = waiting.popleft()
                if completion.cancelled:
                    continue
                fresh = completion.request.policy_version is None
                if held and fresh:
                    deferred.append(completion)
                    continue
                ids = begun(completion)
                if len(self) and not self.memory.holds(len(self) + 1, self._longest(ids)):
                    deferred.append(completion)
                    break
                found, missing = self.memory.find(ids)
                if missing is not None and missing in computing:
                    deferred.append(completion)
                    continue
                computing.add(missing)
                if fresh:
                    completion.request.policy_version = version
                try:
                    budget -= self._place(RowPrompt(completion, ids, len(self), 0), found)
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

    def _place(self, prompt: RowPrompt, found: list[int]) -> int:
        """Give a reply its row, with the blocks that are known; returns the tokens still to compute."""
        self.memory.reserve(self._longest(prompt.ids), len(self) + 1)
        prompt.done = self.memory.load(found, prompt.row)
        if not prompt.completion.ids:
            prompt.completion.cached = prompt.done
        self.prompts.append(prompt)
        return prompt.left

    def next_runs(self, budget: int) -> tuple[list[TokenRun], int]:
        """This step's prompt tokens, and how many of the prompts they complete (the first ones)."""
        runs, finished = [], 0
        for prompt in self.prompts:
            count = prompt.left if self.memory.whole else min(budget, prompt.left)
            runs.append(TokenRun(prompt.row, prompt.done, count))
            budget -= count
            prompt.done += count
            finished += prompt.left == 0
        return runs, finished

    def logits(
        self, lengths: list[int], runs: list[TokenRun], tokens: list[int], keep: list[int]
    ) -> torch.Tensor:
        """A forward pass of a step, or of a part of it; see `Memory.logits`."""
        longest = max([n + 1 for n in lengths] + [run.start + run.count for run in runs])
        self.memory.reserve(longest, len(self))
        return self.memory.logits(lengths, runs, tokens, keep)

    def promote(self, finished: int) -> None:
        """The first `finished` prompts start decoding; their rows follow the decoding ones in order."""
        for prompt in self.prompts[:finished]:
            self.memory.save(prompt.ids, prompt.row)
            self.decoding.append(prompt.completion)
        self.prompts = self.prompts[finished:]

    def leave(self, row: int) -> None:
        """Free a decoding row between steps: keep its blocks for a next turn, close the gap with the last
        rows. Of a reply that failed nothing is kept, nor any other block, since it may have shared one."""
        completion = self.decoding[row]
        if completion.error is None:
            self.memory.save(completion.prompt_ids + completion.ids[:-1], row)
        else:
            self.memory.forget(len(self))
        self.memory.free(row, failed=completion.error is not None)
        last = len(self.decoding) - 1
        if row != last:
            moved = self.decoding[last]
            self.memory.move(last, row, self.lengths()[last])
            self.decoding[row] = moved
        self.decoding.pop()
        for prompt in self.prompts:  # at most one, in the row after the decoding ones
            self.memory.move(prompt.row, last, prompt.done)
            prompt.row = last

    def drop_cancelled(self) -> bool:
        """Free the rows of cancelled replies; whether there were any that decoded."""
        rows = [row for row, completion in enumerate(self.decoding) if completion.cancelled]
        for row in reversed(rows):
            self.leave(row)
        for prompt in self.prompts:
            if prompt.completion.cancelled:
                self.memory.free(prompt.row, failed=False)
        self.prompts = [prompt for prompt in self.prompts if not prompt.completion.cancelled]
        return bool(rows)

    def put_back(self, waiting: deque[Completion]) -> bool:
        """Put the last rows back in line where all have grown out of the memory; whether any decoded.

        Their tokens are computed again, less those that the prefixes keep.
        """
        decoding = len(self.decoding)
        while len(self) > 1 and not self.memory.holds(len(self), self._longest()):
            if self.prompts:
                prompt = self.prompts.pop()
                self.memory.free(prompt.row, failed=False)
                waiting.appendleft(prompt.completion)
            else:
                waiting.appendleft(self.decoding[-1])
                self.leave(len(self.decoding) - 1)
        return len(self.decoding) < decoding

    def drop_failed_prompts(self) -> None:
        """Between steps: free the row of a prompt that the budget cut and that has failed."""
        for prompt in self.prompts:
            if prompt.completion.error is not None:
                self.memory.free(prompt.row, failed=True)
        self.prompts = [prompt for prompt in self.prompts if prompt.completion.error is None]

    def forget(self) -> None:
        """Drop what older weights computed, and the length that rows have grown to."""
        self.memory.forget(len(self))

    def clear(self) -> list[Completion]:
        """Free every row and drop all prefixes, of which one may not be filled; returns what was in the
        rows."""
        replies = [*self.decoding, *(prompt.completion for prompt in self.prompts)]
        self.decoding, self.prompts = [], []
        self.memory.forget(0)
        return replies


def begun(completion: Completion) -> list[int]:
    """The prompt, and what was already replied to it."""
    return completion.prompt_ids + completion.ids if completion.ids else completion.prompt_ids
