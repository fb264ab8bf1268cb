"""Others' texts on a terminal: control characters are shown, never sent.

A reply, an agent's name, an exception or a stored record may hold escape sequences: they would set the title,
clear the screen or write to the clipboard. All that the commands and the trainer print goes through here.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from typing import Final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""C0 but tab and line feed, DEL, C1, what changes the direction of a text, and halves of surrogate pairs."""
_PICTURES: Final = 0x2400
"""Where Unicode has a picture for each of C0."""


def shown(text: str) -> str:
    """The text with a visible character or code for each control character."""
    return _CONTROL.sub(_picture, text)


def _picture(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x20:
        return chr(_PICTURES + code)
    return "\u2421" if code == 0x7F else f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


class Terminal(Console):
    """rich's console, which sends no control character that it did not make itself."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The segments of what is printed; also of what lies in tables and trees."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else shown(text), style, control)


class Plain(logging.Formatter):
    """Log lines for a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """The line as `logging.Formatter` writes it, shown."""
        return shown(super().format(record))
