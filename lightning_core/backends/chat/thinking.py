"""What a reasoning model thinks before it replies: `<think>...</think>`, as Qwen3 and DeepSeek-R1 write it.

A model thinks if its chat template knows the end tag. Templates differ in who writes the first tag: Qwen3's
leaves it to the model, DeepSeek-R1's ends the prompt with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_core.backends.chat.replies import BEGIN, END, held_back

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


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
