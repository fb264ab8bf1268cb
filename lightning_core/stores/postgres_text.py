"""Text in PostgreSQL, whole: it takes neither NUL characters nor halves of surrogate pairs.

What it refuses is written as U+FDD0 (a code point that Unicode keeps free for such uses inside a
program) and four hexadecimal digits, and read back as what it was. All other text is stored as it is.
"""

from __future__ import annotations

import re

import psycopg
from psycopg.abc import Buffer
from psycopg.adapt import AdaptersMap
from psycopg.types.numeric import Int8BinaryDumper
from psycopg.types.string import StrBinaryDumper, TextBinaryLoader

MARK = "\ufdd0"
_REFUSED = re.compile(f"[\x00\ud800-\udfff{MARK}]")
_WRITTEN = re.compile(f"{MARK}([0-9a-f]{{4}})")


def escape(text: str) -> str:
    """The text as PostgreSQL takes it."""
    return _REFUSED.sub(lambda found: f"{MARK}{ord(found[0]):04x}", text)


def unescape(text: str) -> str:
    """The text that was escaped."""
    return _WRITTEN.sub(lambda found: chr(int(found[1], 16)), text) if MARK in text else text


class TextDumper(StrBinaryDumper):
    def dump(self, obj: str) -> Buffer:
        try:
            written = obj.encode()
        except UnicodeEncodeError:
            return escape(obj).encode()
        return escape(obj).encode() if b"\x00" in written or MARK in obj else written


class TextLoader(TextBinaryLoader):
    def load(self, data: Buffer) -> str:
        return unescape(str(data, "utf-8"))


def adapters() -> AdaptersMap:
    """psycopg's adapters with our text, and with integers as the columns keep them: 64 bits."""
    adapters = AdaptersMap(psycopg.adapters)
    adapters.register_dumper(str, TextDumper)
    adapters.register_dumper(int, Int8BinaryDumper)
    adapters.register_loader("text", TextLoader)
    return adapters
