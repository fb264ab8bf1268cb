"""The thoughts of a reasoning model, between tags at the beginning of its reply.

A model thinks if its chat template knows the end tag. Templates differ in who writes the first tag: Qwen3's
leaves it to the model, DeepSeek-R1's ends the prompt with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lightning_core.backends.serving.forms import template_text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class Thoughts:
    """The tags around a thought, and around the reply after it where that has some too."""

    begin: str
    end: str
    reply: tuple[str, str] | None = None


THINK: Final = Thoughts("<think>", "</think>")
"""Qwen3's and DeepSeek-R1's, and since then most others'."""
_RESPONSE: Final = ("<response>", "</response>")
THOUGHTS: Final = (
    Thoughts("<seed:think>", "</seed:think>"),
    Thoughts("[THINK]", "[/THINK]"),
    Thoughts("Here is my thought process:", "Here is my response:"),
    Thoughts("<think>", "</think>", _RESPONSE),
    THINK,
)
"""Seed-OSS's, Mistral's, Granite 3.2's and 3.3's, and the common ones, in the order they are looked for."""


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


def find_thoughts(tokenizer: PreTrainedTokenizerBase) -> Thoughts | None:
    """How the model writes what it thinks, by its chat template; None if the template knows no thoughts."""
    text = template_text(tokenizer)
    return next((each for each in THOUGHTS if each.end in text and (each.reply or ("",))[0] in text), None)


class Thinking:
    """Parts a reply into its thought, which comes first, and the rest, as it streams.

    The tags are neither, nor is the blank space around them.
    """

    def __init__(self, thoughts: Thoughts = THINK, *, begun: bool) -> None:
        """`begun`: the prompt ends with the first tag."""
        self._thoughts = thoughts
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
        if start.startswith(self._thoughts.begin):
            self._begun, self._text = True, start[len(self._thoughts.begin) :]
        elif not self._thoughts.begin.startswith(start):
            self._ended = self._said = True

    def _thought(self) -> str:
        end = self._thoughts.end
        if not self._said:
            self._text = self._text.lstrip()
        at = self._text.find(end)
        if at >= 0:
            thought, self._text = self._text[:at].rstrip(), self._text[at + len(end) :]
            self._ended, self._said = True, False
            return thought
        kept = self._text[: len(self._text) - held_back(self._text, (end,))].rstrip()
        self._text, self._said = self._text[len(kept) :], self._said or bool(kept)
        return kept

    def _rest(self) -> str:
        """Returns the text after the thought, without the tags around the reply."""
        first, last = self._thoughts.reply or ("", "")
        rest, held = self._text if self._said else self._text.lstrip(), 0
        if first and not self._said:
            if first.startswith(rest) and rest != first:
                return ""
            rest = rest.removeprefix(first).lstrip()
        if last:
            rest = rest.replace(last, "")
            held = held_back(rest, (last,))
        self._text = rest[len(rest) - held :]
        rest = rest[: len(rest) - held]
        self._said = self._said or bool(rest)
        return rest

    def flush(self) -> tuple[str, str]:
        """Returns the text that was held back, once the reply has ended: (thought, rest)."""
        text, self._text = self._text, ""
        return (text, "") if self._begun and not self._ended else ("", text)
