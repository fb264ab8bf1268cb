"""From token ids to text: whole characters only, special tokens left out, stop strings found."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenizers.decoders import DecodeStream

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class TextStream:
    """The text of a reply as its ids come in."""

    def __init__(self, tokenizer: Tokenizer, hidden: frozenset[int]) -> None:
        """`hidden` ids have no text for the app."""
        self._tokenizer, self._hidden = tokenizer, hidden
        self._stream = DecodeStream(skip_special_tokens=False)

    def feed(self, token_id: int) -> str:
        """The text that this id completes; empty while a character is unfinished."""
        if token_id in self._hidden:
            return ""
        return self._stream.step(self._tokenizer, token_id) or ""


def held_back(text: str, wanted: tuple[str, ...]) -> int:
    """Length of the longest end of `text` that may be the beginning of one of `wanted`."""
    longest = max(map(len, wanted), default=1) - 1
    tail = text[-longest:]
    if not any(w[0] in tail for w in wanted):
        return 0  # the common case, for each piece of every reply
    for length in range(min(longest, len(text)), 0, -1):
        if any(w.startswith(text[-length:]) for w in wanted):
            return length
    return 0


class StopStrings:
    """Lets text through until a stop string is complete; the stop string itself is not let through."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = tuple(s for s in stops if s)
        self._held = ""
        self.hit: str | None = None
        """The stop string that was complete first."""

    def feed(self, text: str) -> str:
        """The text that can't be part of a stop string any more."""
        if not self._stops:
            return text
        text = self._held + text
        found = [(at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self._held = ""
            at, self.hit = min(found)
            return text[:at]
        keep = len(text) - held_back(text, self._stops)
        self._held = text[keep:]
        return text[:keep]

    def flush(self) -> str:
        """What was held back, once the reply has ended without a stop string."""
        held, self._held = self._held, ""
        return held
