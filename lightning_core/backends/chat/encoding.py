"""Text to token ids: only what is new of it, and not what can't fit.

A tokenizer takes out its added tokens before it does anything else. So a text may be cut before one of them
and its pieces encoded apart: the ids are those of the whole text. A conversation that goes on is the same
pieces and some new ones, and pieces are remembered. The cuts are the added tokens that the chat template
writes, where the tokenizer's settings make them safe; else a text is one piece.
"""

from __future__ import annotations

import json
import re
import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tokenizers import AddedToken, Tokenizer, models
from tokenizers.pre_tokenizers import ByteLevel

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CACHE_BYTES: Final = 1 << 26
"""Memory for the pieces that are remembered, of one model: about 8 M tokens of English."""
GENEROUS: Final = 1024
"""Bytes that a token of a tokenizer that is not understood may cover. No ordinary text comes near."""
_PIECE_BYTES: Final = 400
"""What remembering a piece costs beside its text and ids."""
_LETTERS: Final = bytes(range(ord("A"), ord("Z") + 1)) + bytes(range(ord("a"), ord("z") + 1))
_DIGITS: Final = bytes(range(ord("0"), ord("9") + 1))
_ASCII: Final = bytes(range(128))
_KEEPS_ALL: Final = frozenset(("ByteLevel", "Digits", "Punctuation", "Split"))
"""Pre-tokenizers that take no character out of a text, unless they are set to."""
_SHRINKS: Final = 3
"""A text in Unicode's normal form C has at least so small a share of the bytes it had."""


class Encoder:
    """A model's tokenizer. Methods may be called from any thread; other threads run while it encodes."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, cache_bytes: int = CACHE_BYTES) -> None:
        self._tokenizer: Tokenizer = tokenizer.backend_tokenizer
        template = tokenizer.chat_template
        sources = template.values() if isinstance(template, dict) else [template or ""]
        self._cuts = find_cuts(self._tokenizer, "\n".join(map(str, sources)))
        self._widths = Widths.of(self._tokenizer)
        self._known: OrderedDict[str, array[int]] = OrderedDict()
        self._free = cache_bytes
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

    def least(self, pieces: list[str]) -> int:
        """A number of tokens that these pieces have for certain, at next to no cost."""
        return max(len(pieces) - 1, self._widths.least("".join(pieces)))

    def unknown(self, pieces: Iterable[str]) -> int:
        """Characters of these pieces that `encode` would put through the tokenizer."""
        return sum(len(piece) for piece in pieces if piece not in self._known)

    def encode(self, pieces: list[str]) -> list[int]:
        """The ids of the text in these pieces, without any that the tokenizer has every text begin with."""
        found = self._recall(pieces)
        new = [piece for piece in dict.fromkeys(pieces) if piece not in found]
        if new:
            # the one way to encode that lets go of the interpreter lock
            encoded = self._tokenizer.encode_batch_fast(new, add_special_tokens=False)
            fresh = {piece: array("I", each.ids) for piece, each in zip(new, encoded, strict=True)}
            found.update(fresh)
            self._remember(fresh)
        ids: list[int] = []
        for piece in pieces:
            ids += found[piece]
        return ids

    def encode_raw(self, text: str) -> list[int]:
        """The ids of a text, which begins as the tokenizer has every text begin."""
        ids: list[int] = self._tokenizer.encode_batch_fast([text])[0].ids
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
    return _PIECE_BYTES + 4 * len(piece) + 4 * len(ids)


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


@dataclass(frozen=True, slots=True)
class Widths:
    """The most that one token covers."""

    letters: int = GENEROUS
    """ASCII letters."""
    digits: int = GENEROUS
    """ASCII digits."""
    all: int = GENEROUS
    """Bytes of UTF-8."""
    composes: bool = False
    """Whether the text is brought to Unicode's normal form C first: a mark may then take up the letter before
    it, and several characters become one of fewer bytes."""

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Widths:
        """What the vocabulary says of byte-level BPE; a generous guess where it can't be known."""
        composes = _setting(tokenizer.normalizer).get("type") == "NFC"
        if not (tokenizer.normalizer is None or composes) or not _is_byte_level(tokenizer):
            return cls()
        vocabulary = tokenizer.get_vocab(with_added_tokens=False)
        known = vocabulary.keys()
        added = list(tokenizer.get_added_tokens_decoder().values())
        written = "\n".join((*known, *(token.content for token in added))).encode()
        # what is in no token is left out of a prompt, and such a token takes up any number of spaces
        bounded = known >= set(ByteLevel.alphabet()) and not any(t.lstrip or t.rstrip for t in added)
        longest = max((*map(len, known), *(len(token.content.encode()) for token in added), 1))
        return cls(
            letters=_most(written, _LETTERS) if known >= set(_LETTERS.decode()) else GENEROUS,
            digits=_most(written, _DIGITS) if known >= set(_DIGITS.decode()) else GENEROUS,
            all=longest if bounded else GENEROUS,
            composes=composes,
        )

    def least(self, text: str) -> int:
        """A number of tokens that the text has for certain."""
        data = text.encode(errors="surrogatepass")
        size, lost, shrinks = len(data), 0, 1
        if self.composes and not text.isascii():
            lost, shrinks = len(text) - _count(data, _ASCII), _SHRINKS
        return max(
            size // (shrinks * self.all),
            (_count(data, _LETTERS) - lost) // self.letters,
            (_count(data, _DIGITS) - lost) // self.digits,
        )


def _count(data: bytes, characters: bytes) -> int:
    return len(data) - len(data.translate(None, characters))


def _most(written: bytes, characters: bytes) -> int:
    """The most of these characters that any line has."""
    others = bytes(set(range(256)) - set(characters) - {ord("\n")})
    return max(map(len, written.translate(None, others).split(b"\n")))


def _is_byte_level(tokenizer: Tokenizer) -> bool:
    """Whether a token covers bytes that stand side by side in a text, and none are taken out before."""
    setting = _setting(tokenizer.pre_tokenizer)
    steps = setting.get("pretokenizers", [setting])
    kinds = {step.get("type") for step in steps}
    removing = any(step.get("behavior") == "Removed" for step in steps)
    byte_level = "ByteLevel" in kinds and kinds <= _KEEPS_ALL and not removing
    return isinstance(tokenizer.model, models.BPE) and byte_level


def _setting(part: Any) -> dict[str, Any]:
    """A normalizer or pre-tokenizer as tokenizer.json writes it."""
    if part is None:
        return {}
    setting: dict[str, Any] = json.loads(part.__getstate__())
    return setting
