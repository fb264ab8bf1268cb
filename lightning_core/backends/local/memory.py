"""The engine's view of a model: rows that remember their tokens, and the forward pass that extends them.

Two implementations. `packed.PackedMemory` keeps keys and values in slots and runs all tokens of a step as one
sequence, with reusable prefixes: exact where attention is all that carries the past. `states.StateMemory`
keeps transformers' own cache for each row: for networks with other state.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch


@dataclass(frozen=True, slots=True)
class TokenRun:
    """Prompt tokens of one row: `count` of them, the first at position `start`."""

    row: int
    start: int
    count: int


class Memory(Protocol):
    """The rows of the replies in flight, numbered from 0, and prefixes of earlier ones."""

    @property
    def rows(self) -> int:
        """The most rows at present."""

    @property
    def hit_tokens(self) -> int:
        """Prompt tokens that needed no forward pass."""

    @property
    def whole(self) -> bool:
        """Whether a prompt must be computed in one step."""

    def holds(self, rows: int, length: int) -> bool:
        """Whether there is memory for so many rows of `length` tokens."""

    def reserve(self, length: int, in_use: int) -> None:
        """Make room for rows of `length` tokens, keeping what is in the first `in_use` rows."""

    def shrink(self, length: int, in_use: int) -> None:
        """Go back to shorter rows, and more of them, where `length` tokens in `in_use` rows allow it."""

    def find(self, ids: list[int]) -> tuple[Any, Hashable | None]:
        """The longest known prefix of `ids`, for `load`, and a key of what is missing: a prompt with the same
        key computes what this one will need too. At least the last token stays uncovered."""

    def load(self, found: Any, row: int) -> int:
        """Begin `row` with a prefix that was found; returns the number of tokens it covers."""

    def save(self, ids: list[int], row: int) -> None:
        """Keep what `row` holds of `ids` as a prefix for others."""

    def move(self, source: int, target: int, length: int) -> None:
        """Row `source`, of `length` tokens, is row `target` from now on."""

    def free(self, row: int, *, failed: bool) -> None:
        """The reply of this row has ended. If it failed, none of its numbers may reach another reply."""

    def forget(self, in_use: int) -> None:
        """Forget all prefixes, and what lies in the rows if none is in use."""

    def logits(
        self, lengths: list[int], runs: list[TokenRun], tokens: list[int], keep: list[int]
    ) -> torch.Tensor:
        """One engine step: one more token for each of the first B rows, which hold `lengths` tokens, then the
        runs' tokens, in that order. Returns next-token logits (N, V) after the N tokens at places `keep`."""

    def restore(self, row: int, ids: Sequence[int]) -> None:
        """After a step that failed: make `row` hold `ids` again, and nothing of the failed step."""
