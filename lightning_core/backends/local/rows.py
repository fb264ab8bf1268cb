"""Which reply has which row: admission, prefill, compaction.

Rows 0 to B-1 decode, so that decoding reads one contiguous block. Prompts of a step take the rows after them;
at most one, the last, does not fit the step's budget and goes on in the next step.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass

from lightning_core.backends.chat.completion import Completion
from lightning_core.backends.local.cache import Prefixes, Slots
from lightning_core.backends.local.plan import Run

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Prompt:
    """A row's prompt and how much of it is in the row."""

    completion: Completion
    row: int
    done: int

    @property
    def left(self) -> int:
        return len(self.completion.prompt_ids) - self.done


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
        While `held`, only further choices of requests that are being answered are taken.
        """
        budget -= sum(p.left for p in self.prompts)
        computing = {self.prefixes.find(p.completion.prompt_ids)[1] for p in self.prompts}
        deferred: list[Completion] = []
        refused: list[Completion] = []
        try:
            while waiting and budget > 0 and len(self) < self.slots.rows:
                completion = waiting.popleft()
                if completion.cancelled:
                    continue
                found, missing = self.prefixes.find(completion.prompt_ids)
                fresh = completion.request.policy_version is None
                if (held and fresh) or (missing is not None and missing in computing):
                    deferred.append(completion)
                    continue
                computing.add(missing)
                if fresh:
                    completion.request.policy_version = version
                try:
                    budget -= self._place(completion, found)
                except Exception as error:  # boundary: this reply fails, the others go on
                    logger.exception("a prompt of %d tokens got no row", len(completion.prompt_ids))
                    completion.error = error
                    refused.append(completion)
        finally:
            waiting.extendleft(reversed(deferred))
        return refused

    def _place(self, completion: Completion, found: list[int]) -> int:
        """Give a reply the next row, with the blocks that are known; returns the tokens still to compute."""
        prompt = Prompt(completion, len(self), 0)
        self.slots.reserve(len(completion.prompt_ids) + 1, len(self) + 1)
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
            self.prefixes.save(prompt.completion.prompt_ids, self.slots, prompt.row)
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
