"""What a reasoning model thinks, between tags at the beginning of its reply.

Thoughts are written as Qwen3 and DeepSeek-R1 do. A model thinks if its chat template knows the end tag.
Templates differ in who writes the first tag: Qwen3's leaves it to the model, DeepSeek-R1's ends the prompt
with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


BEGIN, END = "<think>", "</think>"
"""Around a thought."""


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


def thinks(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the model's chat template knows of thoughts."""
    template = tokenizer.chat_template
    sources = template.values() if isinstance(template, dict) else [template or ""]
    return any(END in str(source) for source in sources)


class Thinking:
    """Parts a reply into its thought, which comes first, and the rest, as it streams.

    The tags are neither, nor is the blank space around them.
    """

    def __init__(self, *, begun: bool) -> None:
        """`begun`: the prompt ends with the first tag."""
        self._text = ""
        self._begun, self._ended = begun, False
        self._said = False
        """Whether anything of the part that is open was passed on."""

    def feed(self, text: str) -> tuple[str, str]:
        """(thought that is certain, the rest that is certain)."""
        self._text += text
        if not self._begun and not self._ended:
            self._begin()
        thought = self._thought() if self._begun and not self._ended else ""
        return thought, self._rest() if self._ended else ""

    def _begin(self) -> None:
        start = self._text.lstrip()
        if start.startswith(BEGIN):
            self._begun, self._text = True, start[len(BEGIN) :]
        elif not BEGIN.startswith(start):
            self._ended = self._said = True

    def _thought(self) -> str:
        if not self._said:
            self._text = self._text.lstrip()
        at = self._text.find(END)
        if at >= 0:
            thought, self._text = self._text[:at].rstrip(), self._text[at + len(END) :]
            self._ended, self._said = True, False
            return thought
        kept = self._text[: len(self._text) - held_back(self._text, (END,))].rstrip()
        self._text, self._said = self._text[len(kept) :], self._said or bool(kept)
        return kept

    def _rest(self) -> str:
        rest, self._text = self._text if self._said else self._text.lstrip(), ""
        self._said = self._said or bool(rest)
        return rest

    def flush(self) -> tuple[str, str]:
        """What was held back, once the reply has ended: (thought, rest)."""
        text, self._text = self._text, ""
        return (text, "") if self._begun and not self._ended else ("", text)
