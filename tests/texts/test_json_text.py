"""JSON from outside comes in one form: nested no deeper than every part can hold, without half characters."""

from __future__ import annotations

import json
import math
import sys
from typing import Any

import orjson
import pytest

from lightning_core.texts.json_text import DEPTH, JsonError, read_json, read_written, whole


def nested(depth: int, inside: Any = None) -> Any:
    value: Any = [] if inside is None else inside
    for place in range(depth - 1):
        value = [value] if place % 2 else {"a": value}
    return value


@pytest.mark.parametrize("read", [read_json, lambda content: read_written(content.decode())])
def test_json_is_read_down_to_the_limit_of_depth_and_no_further(read: Any) -> None:
    deepest = nested(DEPTH)
    wide = [{"a": [1, "[[{{"]}] * 200
    for value in (deepest, wide, "[" * 500, {"a": [[]] * 300}):
        assert read(orjson.dumps(value)) == value
    for depth in (DEPTH + 1, 500):
        with pytest.raises(JsonError, match="100 levels"):
            read(json.dumps(nested(depth)).encode())
    for deep in (b"[" * 100_000, b"[" * 100_000 + b"]" * 100_000, b'{"a":' * 5000):
        with pytest.raises(JsonError):
            read(deep)


@pytest.mark.parametrize("read", [read_json, lambda content: read_written(content.decode())])
@pytest.mark.parametrize(
    ("text", "meant"),
    [
        (rb"\ud83d", "\ufffd"),
        (rb"a\uDE00b", "a\ufffdb"),
        (rb"\ud83d\ud83d\ude00", "\ufffd\U0001f600"),
        (rb"\ud83d\ude00\ude00", "\U0001f600\ufffd"),
        (rb"\\ud83d", r"\ud83d"),
        (rb"\\\ud83d", "\\\ufffd"),
        (rb"\ud83d\n\u00e9", "\ufffd\n\u00e9"),
    ],
)
def test_half_of_a_surrogate_pair_becomes_the_replacement_character(
    read: Any, text: bytes, meant: str
) -> None:
    assert read(b'{"%b": ["%b"]}' % (text, text)) == {meant: [meant]}


def test_a_text_that_holds_half_of_a_pair_itself_becomes_whole() -> None:
    assert whole("a\ud83d\U0001f600\udc00é") == "a\ufffd\U0001f600\ufffdé"
    assert read_written('["\ud83d"]') == ["\ufffd"]


@pytest.mark.parametrize("content", [b"{", b"", b'"\xed\xa0\xbd"', b"[NaN]", rb'"\ud8zz"', b"1e400"])
def test_what_is_no_json_is_said_so(content: bytes) -> None:
    with pytest.raises(JsonError):
        read_json(content)


def test_what_a_model_writes_keeps_its_numbers() -> None:
    assert read_written("[123456789012345678901234567890, 1.0]") == [123456789012345678901234567890, 1.0]
    most = sys.float_info.max  # Infinity would be no JSON for the app that is given it
    assert read_written("[25.04E44522, -1e999, 1e-999]") == [most, -most, 0.0]
    for wrong in ("{", "", "9" * 5000):
        with pytest.raises(JsonError):
            read_written(wrong)


def test_exact_json_keeps_what_python_writes_within_the_same_bounds() -> None:
    hard = {"half": "\ud83e", "nan": [math.inf, -math.inf], "big": 10**30, "text": "é"}
    assert read_json(json.dumps(hard).encode(), exact=True) == hard
    assert math.isnan(read_json(b"NaN", exact=True))
    for refused in (b"[" * 101 + b"]" * 101, b"[" * 100_000 + b"]" * 100_000, b"{", b"9" * 100_000):
        with pytest.raises(JsonError):
            read_json(refused, exact=True)
    with pytest.raises(JsonError, match="more than 2"):
        read_json(b"[[[]]]", exact=True, parts=2)
