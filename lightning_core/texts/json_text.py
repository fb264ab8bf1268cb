"""JSON from outside, read with one limit of depth, and text without halves of characters.

An app or a model may write JSON that some part further on can't hold: nested deeper than a serialiser goes,
or with half of a surrogate pair, which is no character and which tokenizers and databases refuse. So all of
it is read here, and comes out as every part can hold it.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any, Final

import orjson
from pydantic_core import from_json

EXACT_JSON: Final = "application/x-python-json"
"""The media type of JSON as Python's `json` writes it: NaN, infinities, integers of any size and halves of
surrogate pairs are kept. The store over HTTP sends and gets it."""
DEPTH: Final = 100
"""How deep lists and objects may be nested. Schemas of tools go some 30 deep; orjson writes 254."""
_ESCAPE: Final = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)
"""One escape in a text of JSON: a surrogate pair, the half of one, or any other."""
_HALF: Final = re.compile("[\ud800-\udfff]")


_MOST: Final = sys.float_info.max
PARTS: Final = 1_000_000
"""How many lists, objects and fields may be in it. Each takes some 70 bytes, and 0.2 microseconds in
which all else stands still; no prompt that a model can hold comes near."""


class JsonError(ValueError):
    """Text that is not JSON, nested too deep, or of too many parts."""


def read_json(content: bytes, *, parts: int = PARTS, exact: bool = False) -> Any:
    """Reads a client's JSON. Half of a surrogate pair becomes U+FFFD, the replacement character; with
    `exact`, for EXACT_JSON, everything is kept.

    Raises JsonError.
    """
    if len(content) > parts and sum(map(content.count, (b"[", b"{", b":"))) > parts:
        raise JsonError(f"it has more than {parts} brackets and colons; send less at once")
    try:
        value = load_json(content) if exact else _parse(content)
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:
        raise JsonError(str(error)) from error
    return _shallow(content, value)


def read_written(text: str) -> Any:
    """Reads JSON that a model wrote, or an app quotes of it: as `read_json`, with integers of any size, NaN
    and Infinity. A number that no double holds becomes the largest that one does, as `Infinity` would be no
    JSON.

    Raises JsonError.
    """
    content = _whole_escapes(whole(text).encode())
    try:
        value = json.loads(content, parse_float=_float)
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:
        raise JsonError(str(error)) from error
    return _shallow(content, value)


def _float(text: str) -> float:
    return max(-_MOST, min(_MOST, float(text)))


def whole(text: str) -> str:
    """The text; half of a surrogate pair in it becomes U+FFFD."""
    return text if text.isascii() else _HALF.sub("\ufffd", text)


def _whole_escapes(content: bytes) -> bytes:
    """JSON; an escape in it that is half of a surrogate pair becomes that of U+FFFD."""
    return _ESCAPE.sub(_whole_escape, content) if b"\\u" in content else content


def _parse(content: bytes) -> Any:
    try:
        return orjson.loads(content)
    except ValueError:
        mended = _whole_escapes(content)
        if mended == content:
            raise
        return orjson.loads(mended)


def load_json(content: bytes) -> Any:
    """Reads JSON as Python's `json` does, faster. Raises ValueError."""
    try:
        return from_json(content)
    except ValueError:
        return json.loads(content)


def _whole_escape(found: re.Match[bytes]) -> bytes:
    return rb"\ufffd" if found[1] else found[0]


def _shallow(content: bytes, value: Any) -> Any:
    """The value. Raises JsonError if it is nested too deep, for which it takes so many brackets."""
    if content.count(b"[") + content.count(b"{") > DEPTH and _depth(value) > DEPTH:
        raise _too_deep()
    return value


def _depth(value: Any) -> int:
    """How deep it is nested: [] is 1."""
    depth, level = 0, _containers([value])
    while level:
        depth += 1
        level = [each for one in level for each in _containers(one)]
    return depth


def _containers(value: Any) -> list[Any]:
    inside = value.values() if isinstance(value, dict) else value
    return [each for each in inside if isinstance(each, dict | list)]


def _too_deep() -> JsonError:
    return JsonError(f"it is nested more than {DEPTH} levels deep; send flatter JSON")
