"""Keys and values: `Slots`, one row for each reply under way, and `Prefixes`, blocks of finished prompts to
reuse."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import torch

from lightning_core.backends.local.attention import AttentionCall

BLOCK = 4
"""Tokens to a reusable block."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Shape of a model's key/value memory."""

    layers: int
    """Layers that have keys and values of their own."""
    heads: int
    """Key/value heads (K), the most of any layer."""
    size: int
    """Size of one head (D), the largest of any layer's keys and values."""
    dtype: torch.dtype
    device: torch.device
    calls: tuple[AttentionCall, ...] = ()
    """The calls of attention in a forward pass."""

    @property
    def token_bytes(self) -> int:
        return 2 * self.layers * self.heads * self.size * self.dtype.itemsize


class Slots:
    """A pool of rows, each the keys and values of one sequence from position 0.

    `memory` is (layers, 2, rows, K, capacity, D): decoding reads rows 0 to B as one batch without a copy.
    Rows get longer by doubling, and fewer where `max_bytes` asks for it. One row may need more than that.
    """

    def __init__(self, shape: Shape, limit: int, *, max_bytes: int, capacity: int = 256) -> None:
        """At most `limit` rows, first of `capacity` tokens."""
        self.shape = shape
        self.memory: torch.Tensor
        self._limit, self._max_bytes, self._first_capacity = limit, max_bytes, capacity
        self._allocate(capacity, in_use=None)

    def reset(self) -> None:
        """Back to rows of the first length, while none is in use."""
        if self.capacity != self._first_capacity:
            self._allocate(self._first_capacity, in_use=0)

    def _allocate(self, capacity: int, in_use: int | None) -> None:
        """`in_use` is None the first time."""
        s = self.shape
        fit = self._max_bytes // (capacity * s.token_bytes)
        rows = max(1, in_use or 0, min(self._limit, fit))
        # first what may fail, so that the rows stay as they are
        memory = torch.zeros((s.layers, 2, rows, s.heads, capacity, s.size), dtype=s.dtype, device=s.device)
        if in_use is not None and memory.is_cuda:  # else another stream could take it while this one reads
            self.memory.record_stream(torch.cuda.current_stream(s.device))
        self.memory = memory
        self.rows, self.capacity = rows, capacity
        self.keys = [self.memory[i, 0] for i in range(s.layers)]
        self.values = [self.memory[i, 1] for i in range(s.layers)]
        self.flat = [self.memory[i].view(-1, s.size) for i in range(s.layers)]
        heads = torch.arange(s.heads, device=s.device) * capacity
        self._offsets = torch.cat((heads, heads + rows * s.heads * capacity))
        """Offsets of a token's keys, then of its values."""

    def holds(self, rows: int, length: int) -> bool:
        """Whether the memory suffices for so many sequences of `length` tokens."""
        return length <= self.capacity or rows * length * self.shape.token_bytes <= self._max_bytes

    def reserve(self, length: int, in_use: int) -> None:
        """Make room for sequences of `length` tokens, keeping what is in the first `in_use` rows."""
        if length > self.capacity:
            twice = max(length, 2 * self.capacity)
            most = self._max_bytes // (max(1, in_use) * self.shape.token_bytes)
            self._resize(min(twice, most) if length <= most else twice, in_use)

    def shrink(self, length: int, in_use: int) -> None:
        """Make more rows of what sequences of `length` tokens don't need, halving the rows' length."""
        capacity = self.capacity
        while capacity > self._first_capacity and length <= capacity // 2:
            capacity = max(self._first_capacity, capacity // 2)
        if self.rows < self._limit and capacity < self.capacity:
            self._resize(capacity, in_use)

    def _resize(self, capacity: int, in_use: int) -> None:
        old, kept = self.memory, min(capacity, self.capacity)
        self._allocate(capacity, in_use)
        self.memory[:, :, :in_use, :, :kept] = old[:, :, :in_use, :, :kept]

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` tokens of row `source` over row `target`."""
        self.memory[:, :, target, :, :length] = self.memory[:, :, source, :, :length]

    def wipe(self, row: int) -> None:
        """Forget what is in a row: what is not finite there would reach the next reply in the row."""
        self.memory[:, :, row] = 0.0

    def places(self, rows: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Where the keys, then the values, of tokens lie in `flat`: rows and positions (T,) → (T * 2K,)."""
        first = rows * (self.shape.heads * self.capacity) + positions
        return (first[:, None] + self._offsets).view(-1)


@dataclass(slots=True)
class _Block:
    serial: int
    index: int


class Prefixes:
    """Blocks of 4 tokens' keys and values, found by their exact token prefix, least recently used dropped
    first.

    A block's key is its parent's serial number and its own tokens, so equal keys mean equal prefixes. A path
    is touched from its leaf to its root: a parent is never older than its children and is never dropped
    before them.
    """

    def __init__(self, shape: Shape, *, max_bytes: int) -> None:
        blocks = max_bytes // (shape.token_bytes * BLOCK)
        self._store = torch.empty(
            (blocks, shape.layers, 2, shape.heads, BLOCK, shape.size), dtype=shape.dtype, device=shape.device
        )
        self._free = list(range(blocks))
        self._blocks: OrderedDict[tuple[int, ...], _Block] = OrderedDict()
        self._serial = 0
        self.hit_tokens = 0
        """Prompt tokens that needed no forward pass."""

    def __len__(self) -> int:
        return len(self._blocks)

    def find(self, ids: list[int]) -> tuple[list[int], tuple[int, ...] | None]:
        """Stored blocks of the longest known prefix of `ids`, and the key of the first one missing.

        At least the last token stays uncovered, since its logits are wanted. The key is None when every whole
        block is stored.
        """
        found: list[int] = []
        if not len(self._store):
            return found, None
        path: list[tuple[int, ...]] = []
        parent, missing = 0, None
        for start in range(0, (len(ids) - 1) // BLOCK * BLOCK, BLOCK):
            key = (parent, *ids[start : start + BLOCK])
            block = self._blocks.get(key)
            if block is None:
                missing = key
                break
            found.append(block.index)
            path.append(key)
            parent = block.serial
        for key in reversed(path):
            self._blocks.move_to_end(key)
        return found, missing

    def load(self, found: list[int], slots: Slots, row: int) -> int:
        """Copy stored blocks to the start of `row`; returns the number of tokens they cover."""
        if not found:
            return 0
        length = len(found) * BLOCK
        blocks = self._store[found]  # (N, layers, 2, K, 4, D)
        layers, _, heads, _, size = blocks.shape[1:]
        target = slots.memory[:, :, row, :, :length].view(layers, 2, heads, len(found), BLOCK, size)
        target.copy_(blocks.permute(1, 2, 3, 0, 4, 5))
        self.hit_tokens += length
        return length

    def save(self, ids: list[int], slots: Slots, row: int) -> None:
        """Store the whole blocks of `ids`, whose keys and values lie in `row`, that are not stored yet."""
        path: list[tuple[int, ...]] = []
        starts: list[int] = []
        parent = 0
        for start in range(0, len(ids) // BLOCK * BLOCK, BLOCK):
            key = (parent, *ids[start : start + BLOCK])
            block = self._blocks.get(key)
            if block is None:
                index = self._take(len(path))
                if index is None:
                    break
                self._serial += 1
                block = self._blocks[key] = _Block(self._serial, index)
                starts.append(start)
            path.append(key)
            parent = block.serial
            self._blocks.move_to_end(key)
        self._copy(starts, [self._blocks[key].index for key in path[len(path) - len(starts) :]], slots, row)
        for key in reversed(path):
            self._blocks.move_to_end(key)

    def _take(self, in_use: int) -> int | None:
        """A free block's index; None if all blocks belong to the path being stored."""
        if self._free:
            return self._free.pop()
        if in_use >= len(self._blocks):
            return None
        return self._blocks.popitem(last=False)[1].index

    def _copy(self, starts: list[int], indices: list[int], slots: Slots, row: int) -> None:
        if not starts:
            return
        first, end = starts[0], starts[-1] + BLOCK  # new blocks are the tail of a path: one run
        run = slots.memory[:, :, row, :, first:end]
        layers, _, heads, _, size = run.shape
        self._store[indices] = run.reshape(layers, 2, heads, len(starts), BLOCK, size).permute(
            3, 0, 1, 2, 4, 5
        )

    def clear(self) -> None:
        """Forget everything: the weights have changed."""
        self._free.extend(block.index for block in self._blocks.values())
        self._blocks.clear()
