"""Sequences of token ids, and of their log-probabilities, as training holds them.

Arrays, four bytes a number: in a list each number is an object somewhere in memory, and going there is what
a large batch would wait for. Where sequences are sorted, or searched for what they begin with, they are spelt
as bytes, in which both are as fast as memory. Prompts that a store has read into one memory begin one
another, and are spelt once.
"""

from __future__ import annotations

import operator
import sys
import zlib
from array import array
from base64 import b64decode, b64encode
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Final, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from lightning_core.errors import TokenIdsError

SHARED: Final = 1 << 18
"""Ids below this, as nearly all are, share their numbers in memory."""
LONG: Final = 256
"""Ids from which a list is worth that."""


def as_ids(ids: Sequence[int]) -> array[int]:
    """Token ids as uint32. Raises TokenIdsError if one is none."""
    if isinstance(ids, memoryview) and ids.format == "I":
        found = array("I")
        found.frombytes(ids.tobytes())
        return found
    try:
        return array("I", ids)
    except (OverflowError, TypeError) as error:
        wrong = next(each for each in ids if not _is_id(each))
        raise TokenIdsError(f"{wrong!r} is not a token id: ids are integers from 0 to 2**32 - 1") from error


def as_list(ids: NDArray[np.uint32]) -> list[int]:
    """(N,) ids as a list. Long ones share their numbers: 8 bytes an id in place of 40, in half the time."""
    shares = len(ids) >= LONG and ids.max() < SHARED
    found: list[int] = (_numbers()[ids] if shares else ids).tolist()
    return found


@cache
def _numbers() -> NDArray[np.object_]:
    """(SHARED,) each number as an object, made once."""
    numbers = np.empty(SHARED, object)
    numbers[:] = range(SHARED)
    return numbers


def _is_id(each: object) -> bool:
    return isinstance(each, SupportsIndex) and 0 <= operator.index(each) < 2**32


def as_logprobs(logprobs: Sequence[float]) -> array[float]:
    """Log-probabilities as float32."""
    return array("f", logprobs)


def spell(*parts: Sequence[int]) -> bytes:
    """The ids of all parts, four big-endian bytes each. They sort, and begin one another, as the ids do."""
    spelt = array("I")
    for part in parts:
        spelt += part if isinstance(part, array) and part.typecode == "I" else as_ids(part)
    if sys.byteorder == "little":
        spelt.byteswap()
    return spelt.tobytes()


def join(*parts: Sequence[float]) -> NDArray[np.float32]:
    """The log-probabilities of all parts, one after another."""
    joined = array("f")
    for part in parts:
        joined += as_logprobs(part)
    return np.frombuffer(joined, np.float32)


def common(first: bytes, second: bytes) -> int:
    """How many tokens both begin with, as `spell` wrote them."""
    size = min(len(first), len(second))
    if first[:size] == second[:size]:
        return size // 4
    differs = np.frombuffer(first, ">u4", size // 4) != np.frombuffer(second, ">u4", size // 4)
    return int(differs.argmax())


@dataclass(frozen=True, slots=True)
class Spelt:
    """Sequences, each as the beginning of a text, which those that are known to begin one another share."""

    texts: list[bytes]
    """As `spell` writes them."""
    sizes: list[int]
    """Bytes of each text that are the sequence."""
    are_parts: bool
    """Whether some may share a text; else each is the whole of its own."""

    def part(self, place: int, start: int = 0) -> bytes:
        """The bytes of a sequence from `start` on."""
        return self.texts[place][start : self.sizes[place]]

    def begins(self, first: int, second: int) -> bool:
        """Whether the second sequence has all tokens of the first, and has them first."""
        if not self.are_parts:
            return self.texts[second].startswith(self.texts[first])
        if self.texts[first] is self.texts[second] or self.sizes[first] > self.sizes[second]:
            return self.sizes[first] <= self.sizes[second]
        return self.texts[second].startswith(self.part(first))

    def common(self, first: int, second: int) -> int:
        """How many tokens both begin with."""
        if self.texts[first] is self.texts[second]:
            return min(self.sizes[first], self.sizes[second]) // 4
        return common(self.part(first), self.part(second))

    def in_order(self, places: Sequence[int]) -> list[int]:
        """These places, which rise, as the sequences sort; equal ones as they stand.

        Only texts are compared. A part of one stands before the first text that begins with it.
        """
        if not self.are_parts:
            return sorted(places, key=self.texts.__getitem__)
        members: defaultdict[int, list[int]] = defaultdict(list)
        for place in places:
            members[id(self.texts[place])].append(place)
        texts = sorted(self.texts[alike[0]] for alike in members.values())
        firsts: dict[int, int] = {}
        rising, heights = list[int](), list[int]()
        """The texts that share less with the one before than any later one does, and how much they share."""
        for number, (before, text) in enumerate(pairwise([b"", *texts])):
            shared = 4 * common(before, text) if number else -1
            while heights and heights[-1] >= shared:
                rising.pop()
                heights.pop()
            rising.append(number)
            heights.append(shared)
            for place in members[id(text)]:
                firsts[place] = rising[bisect_left(heights, self.sizes[place]) - 1]
        return sorted(places, key=lambda place: (firsts[place], self.sizes[place]))


def spell_each(prompts: Sequence[Sequence[int]], replies: Sequence[Sequence[int]]) -> Spelt:
    """Each prompt with its reply, spelt.

    Prompts that begin at one place in memory begin one another. So of those only the longest is spelt, and
    each whose reply it goes on with is a part of it.
    """
    longest = _longest(prompts)
    if not longest:
        alone = list(map(spell, prompts, replies))
        return Spelt(alone, list(map(len, alone)), are_parts=False)
    whole = {place: spell(prompts[place], replies[place]) for place in set(longest.values())}
    texts = []
    for place, (prompt, reply) in enumerate(zip(prompts, replies, strict=True)):
        text = whole.get(longest.get(place, -1))
        if text is None or not text.startswith(spell(reply), 4 * len(prompt)):
            text = spell(prompt, reply)
        texts.append(text)
    sizes = [4 * (len(prompt) + len(reply)) for prompt, reply in zip(prompts, replies, strict=True)]
    return Spelt(texts, sizes, are_parts=True)


def _longest(prompts: Sequence[Sequence[int]]) -> dict[int, int]:
    """For the place of each prompt that begins where another does in memory, that of the longest of these."""
    alike: defaultdict[int, list[int]] = defaultdict(list)
    for place, ids in enumerate(prompts):
        if isinstance(ids, memoryview) and ids.format == "I" and ids.contiguous:
            alike[np.asarray(ids).__array_interface__["data"][0]].append(place)
    families = [places for places in alike.values() if len(places) > 1]
    return {
        place: longest
        for places in families
        for longest in [max(places, key=lambda at: len(prompts[at]))]
        for place in places
    }


def prefixes(spelt: Spelt) -> Iterator[tuple[int, list[list[int]]]]:
    """For each place, those of the sequences that begin the one there: a stack, the shortest first, its own
    last, each as the places that it stands at by then.

    The stack holds until the next place. Among sorted sequences those that begin one are a stack, so each is
    compared with few others.
    """
    stack: list[list[int]] = []
    for place in spelt.in_order(range(len(spelt.texts))):
        while stack and not spelt.begins(stack[-1][0], place):
            stack.pop()
        if not stack or spelt.sizes[stack[-1][0]] < spelt.sizes[place]:
            stack.append([])
        stack[-1].append(place)
        yield place, stack


# masks -----------------------------------------------------------------------------------------------
KEPT = "kept:"
"""How the text of masks begins."""


def pack_mask(mask: NDArray[np.bool_]) -> bytes:
    """A mask over a vocabulary (V,), compressed: a few dozen bytes if most of it is alike."""
    return zlib.compress(np.packbits(mask, bitorder="little").tobytes(), 1)


def write_masks(masks: Sequence[bytes]) -> str:
    """Packed masks, one for each token of a reply, as a text that any store keeps."""
    parts = (part for mask in masks for part in (len(mask).to_bytes(4, "little"), mask))
    return KEPT + b64encode(b"".join(parts)).decode()


def read_masks(text: str, vocabulary: int) -> NDArray[np.uint32]:
    """(N, words) what `write_masks` wrote: bit i of word w is token 32 * w + i. Raises ValueError for masks
    of another vocabulary, or for another text."""
    packed = b64decode(text.removeprefix(KEPT), validate=True)
    size, words, rows, at = (vocabulary + 7) // 8, (vocabulary + 31) // 32, [], 0
    while at < len(packed):
        start = at + 4
        at = start + int.from_bytes(packed[at:start], "little")
        inflate = zlib.decompressobj()
        bits = inflate.decompress(packed[start:at], size + 1)
        if len(bits) != size:
            raise ValueError(f"a mask of another vocabulary than one of {vocabulary} tokens")
        rows.append(bits.ljust(4 * words, b"\0"))
    return np.frombuffer(b"".join(rows), "<u4").astype(np.uint32).reshape(len(rows), words)
