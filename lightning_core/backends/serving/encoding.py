"""Text to token ids: only what is new of it.

A tokenizer takes out its added tokens before it does anything else. So a text may be cut before one of them
and its pieces encoded apart: the ids are those of the whole text. A conversation that goes on is the same
pieces and some new ones, and pieces are remembered. The cuts are the added tokens that the chat template
writes, where the tokenizer's settings make them safe; else a text is one piece.
"""

from __future__ import annotations

import re
import sys
import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from tokenizers import AddedToken, Tokenizer

from lightning_core.backends.machine import machine_memory

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LEAST_CACHE: Final = 1 << 26
"""Bytes for the pieces that are remembered, of one model, at least: some 8 M tokens of English."""
CACHE_SHARE: Final = 64
"""They may take this part of the machine's memory. Rollouts that go on at once take turns: where they do not
all fit, nothing is found again."""
_PIECE_BYTES: Final = 400
"""Bytes that a remembered piece costs beside its text and ids."""


class Encoder:
    """A model's tokenizer. Methods may be called from any thread; other threads run while it encodes."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, cache_bytes: int | None = None) -> None:
        """`cache_bytes`: None is a share of the machine's memory."""
        self._tokenizer: Tokenizer = tokenizer.backend_tokenizer
        template = tokenizer.chat_template
        sources = template.values() if isinstance(template, dict) else [template or ""]
        self._cuts = find_cuts(self._tokenizer, "\n".join(map(str, sources)))
        self._known: OrderedDict[str, array[int]] = OrderedDict()
        share = (machine_memory() or 0) // CACHE_SHARE
        self._free = max(LEAST_CACHE, share) if cache_bytes is None else cache_bytes
        self._lock = threading.Lock()
        self.encoded = 0
        """Characters that went through the tokenizer."""

    def cut(self, text: str) -> list[str]:
        """The pieces of a text, whose ids one after another are the ids of the text."""
        if self._cuts is None:
            return [text]
        starts = [match.start() for match in self._cuts.finditer(text)]
        ends = [*starts, len(text)]
        return [text[a:b] for a, b in zip([0, *starts], ends, strict=True) if a < b]

    def unknown(self, pieces: Iterable[str]) -> int:
        """Characters of these pieces that `encode` would put through the tokenizer."""
        return sum(len(piece) for piece in pieces if piece not in self._known)

    def encode(self, pieces: list[str]) -> array[int]:
        """The ids of the text in these pieces, without any that the tokenizer has every text begin with."""
        found = self._recall(pieces)
        new = [piece for piece in dict.fromkeys(pieces) if piece not in found]
        if new:
            # the one way to encode that lets go of the interpreter lock
            encoded = self._tokenizer.encode_batch_fast(new, add_special_tokens=False)
            fresh = {piece: array("I", each.ids) for piece, each in zip(new, encoded, strict=True)}
            found.update(fresh)
            self._remember(fresh)
        ids = array("I")
        for piece in pieces:
            ids += found[piece]
        return ids

    def encode_raw(self, text: str) -> array[int]:
        """The ids of a text, which begins as the tokenizer has every text begin."""
        ids = array("I", self._tokenizer.encode_batch_fast([text])[0].ids)
        with self._lock:
            self.encoded += len(text)
        return ids

    def _recall(self, pieces: list[str]) -> dict[str, array[int]]:
        found = {}
        with self._lock:
            for piece in pieces:
                ids = self._known.get(piece)
                if ids is not None:
                    self._known.move_to_end(piece)
                    found[piece] = ids
        return found

    def _remember(self, fresh: dict[str, array[int]]) -> None:
        with self._lock:
            for piece, ids in fresh.items():
                self.encoded += len(piece)
                if self._cuts is not None and piece not in self._known:
                    self._known[piece] = ids
                    self._free -= _size(piece, ids)
            while self._free < 0:
                self._free += _size(*self._known.popitem(last=False))


def _size(piece: str, ids: array[int]) -> int:
    return _PIECE_BYTES + sys.getsizeof(piece) + ids.itemsize * len(ids)


def find_cuts(tokenizer: Tokenizer, template: str) -> re.Pattern[str] | None:
    """Finds where a text may be cut: before the added tokens in `template` at which nothing else can happen.

    Such a token is taken out of the text as it stands (not after normalizing, not with the space before it,
    not only between words), and no other one can reach into it. None where there is no such token, or where
    equal texts may have other ids.
    """
    model = tokenizer.model
    if tokenizer.encode_special_tokens or getattr(model, "dropout", None):
        return None
    added = [token for token in tokenizer.get_added_tokens_decoder().values() if not token.normalized]
    if any(token.single_word for token in added):
        return None
    contents = [token.content for token in added]
    cuts = [token.content for token in added if token.content in template and _is_cut(token, contents)]
    return re.compile("|".join(map(re.escape, cuts))) if cuts else None


def _is_cut(token: AddedToken, added: list[str]) -> bool:
    content = token.content
    return (
        bool(content.strip())
        and not token.lstrip
        and not content[0].isspace()
        and not any(_overlap(content, other) for other in added)
    )


def _overlap(a: str, b: str) -> bool:
    """Whether an `a` and a `b`, that are not one and the same, can share a character of some text."""
    inside = a != b and (a in b or b in a)
    shorter = min(len(a), len(b))
    return inside or any(a.endswith(b[:n]) or b.endswith(a[:n]) for n in range(1, shorter))
