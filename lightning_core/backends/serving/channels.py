"""gpt-oss's way to speak, harmony: a reply is a row of messages, each with a header that names its channel.

    <|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…<|return|>

Messages of the channel `analysis` are thoughts, those to `functions.name` are calls, all others content. A
reply that begins without a header is content as it stands, as is one that a grammar holds to a form.
"""

from __future__ import annotations

from typing import Any, Final

from lightning_core.backends.serving.reading import Schemas
from lightning_core.backends.serving.tags import held_back
from lightning_core.backends.serving.tool_calls import as_call
from lightning_core.texts.json_text import JsonError, read_written

START, CHANNEL, MESSAGE, CALL = "<|start|>", "<|channel|>", "<|message|>", "<|call|>"
TAGS: Final = frozenset((START, CHANNEL, MESSAGE, CALL, "<|constrain|>", "<|end|>", "<|return|>"))
_ENDS: Final = ("<|end|>", "<|return|>", CALL, START, CHANNEL)
"""End a message; the last two begin the next header too."""
_HEADERS: Final = (START, CHANNEL, "to=")
_FUNCTIONS: Final = "functions."


class Channels:
    """Parts a reply into its thoughts, its content and its calls, as it streams."""

    def __init__(self, schemas: Schemas | None) -> None:
        """`schemas`: None where the request has no tools, so that a call is content."""
        self._schemas = schemas
        self._text = ""
        self._header: str | None = None
        """The header of the open message; None between messages."""
        self._kinds: set[str] = set()
        """The kinds of messages before, as one of the same kind begins on a line of its own."""
        self._said = False
        self.found = 0

    def feed(self, text: str) -> tuple[str, str, list[dict[str, Any]]]:
        """(thought that is certain, content that is certain, calls that are complete)."""
        self._text += text
        parts: dict[str, str] = {"thought": "", "content": ""}
        calls: list[dict[str, Any]] = []
        while self._header is not None or self._open():
            found = [(at, tag) for tag in _ENDS if (at := self._text.find(tag)) >= 0] if self._header else []
            if not found:
                self._pass_on(parts, len(self._text) - held_back(self._text, _ENDS if self._header else ()))
                break
            at, tag = min(found)
            rest = self._text[at + len(tag) * (tag not in (START, CHANNEL)) :]
            self._text = self._text[:at]
            self._end(parts, calls)
            self._text = rest
        return parts["thought"], parts["content"], calls

    def flush(self, *, cut: bool = False) -> tuple[str, str, list[dict[str, Any]]]:
        """Returns the rest once the reply has ended, as `feed`. An unfinished call is content where the model
        ended it, and left out of a reply that was `cut`."""
        parts: dict[str, str] = {"thought": "", "content": ""}
        calls: list[dict[str, Any]] = []
        if self._header is not None and not (cut and self._kind == "call"):
            self._end(parts, calls)
        elif self._header is None and not self._text.lstrip().startswith((START, CHANNEL)):
            parts["content"] = self._text if self._text.strip() else ""
        self._text = ""
        return parts["thought"], parts["content"], calls

    def _open(self) -> bool:
        """Read the header of the next message; False while it is not complete."""
        start = self._text.lstrip()
        if not start.startswith(_HEADERS):
            if not start or any(tag.startswith(start) for tag in _HEADERS):
                return False
            self._header, self._said = "", True  # no header: content to the end, as the model wrote it
            return True
        header, message, rest = start.partition(MESSAGE)
        if not message:
            return False
        self._header, self._text = header, rest
        self._said = False
        return True

    @property
    def _kind(self) -> str:
        header = self._header or ""
        if self._recipient is not None:
            return "call"
        return "thought" if header.partition(CHANNEL)[2].strip().startswith("analysis") else "content"

    @property
    def _recipient(self) -> str | None:
        """The function that the message calls; None if it calls none that the request could know."""
        words = (self._header or "").replace("<|", " <|").split()
        named = next((word.removeprefix("to=") for word in words if word.startswith("to=")), "")
        known = self._schemas is not None and named.startswith(_FUNCTIONS)
        return named.removeprefix(_FUNCTIONS) if known else None

    def _pass_on(self, parts: dict[str, str], end: int) -> None:
        """Take text of the open message, up to `end`; a call's is kept together."""
        kind = self._kind
        if kind == "call" or not end:
            return
        text, self._text = self._text[:end], self._text[end:]
        if not self._said and kind in self._kinds:
            text = "\n" + text
        self._said = True
        parts[kind] += text

    def _end(self, parts: dict[str, str], calls: list[dict[str, Any]]) -> None:
        """End the open message, whose text is here to its end."""
        name = self._recipient
        call = None if name is None else self._call(name, self._text)
        if call is not None:
            calls.append(call)
            self.found += 1
        elif name is not None:
            parts["content"] += f"{self._header}{MESSAGE}{self._text}"
        else:
            self._pass_on(parts, len(self._text))
        self._kinds.add(self._kind)
        self._header = None

    def _call(self, name: str, text: str) -> dict[str, Any] | None:
        try:
            return as_call(None, name, read_written(text.strip() or "{}"))
        except JsonError:
            return None
