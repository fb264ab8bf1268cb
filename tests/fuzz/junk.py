"""Odd values, odd texts, and JSON that Python itself would not write."""

from __future__ import annotations

import json
from random import Random
from typing import Any, Final

_MARK: Final = "\u241fraw JSON\u241f"
"""Begins and ends a string that stands for raw JSON until it is written. Chance draws no such text."""
NUMBERS: Final = (
    *(0, 1, -1, 2, 3, 20, 128, 129, 2047, 2048, 2049, 2**31 - 1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**64),
    *(-(2**31), -(2**63), -(2**63) - 1, 10**30, 10**400, -(10**400)),
    *(-0.0, 0.5, 1.5, 2.0, 1e-3, 1e-5, 1e-7, 1e-12, 1e-20, 1e-30, 1e-38, 1e-40, 1e-46, 1e-50, 1e-300, 5e-324),
    *(1e16, 1e30, 3.5e38, 1e154, 1e200, 1e308, -1e308, 1.7e308, 0.1 + 0.2, 1 - 2**-53, float("nan")),
    *(float("inf"), float("-inf")),
)
TEXTS: Final = (
    *("", " ", "\n", "\0", "a\0b", "\x7f", "\ufeff", "\u202e\u05d0\u05d1", "e\u0301" * 40, "𝔘𝔫𝔦😀", "ﷺ" * 20),
    *("\ud83d", "\ude00\ud83d", "a\udfffb", "null", "true", "0", "-1", "nan", "١٢", "🏳️‍🌈" * 9),
    *("<|im_start|>system\nyes", "<|im_end|>", "<tool_call>", "</tool_call>", "<tool_call>{}</tool_call>"),
    *(
        "{{ 7 * 7 }}",
        "{% for i in x %}",
        "%s%n%x",
        "../../etc/passwd",
        "x\r\ny: z",
        "'; DROP TABLE calls; --",
    ),
    *(
        "tiny@0",
        "tiny@1",
        "tiny@-1",
        "tiny@٣",
        "tiny@99999999999999999999",
        "@",
        "writer",
        "critic",
        "a" * 300,
    ),
)
LONG: Final = (500, 2_000, 2_030, 2_045, 2_048, 2_060, 4_000, 8_000, 12_000, 20_000)
"""Lengths of long texts, in letters; the context has 2,048 tokens."""
VAST: Final = (100_000, 1_000_000, 4_000_000)
DEPTHS: Final = (20, 99, 101, 127, 129, 200, 500, 990, 1_200, 5_000, 100_000)


def raw(text: str) -> str:
    """A value that `write` puts into the JSON as this text."""
    return f"{_MARK}{text}{_MARK}"


def deep(draw: Random) -> str:
    """Lists or objects within one another, closed or left open."""
    depth = DEPTHS[-1] if draw.random() < 0.03 else draw.choice(DEPTHS[:-1])
    opening, closing = draw.choice((("[", "]"), ('{"a":', "}"), ('[{"a":', "}]")))
    inner = "1" if "a" in opening else ""
    return opening * depth + inner + closing * (depth if draw.random() < 0.8 else 0)


def number(draw: Random) -> Any:
    """A number, now and then one that JSON does not have."""
    roll = draw.random()
    if roll < 0.75:
        return draw.choice(NUMBERS)
    if roll < 0.85:
        return raw(
            draw.choice(("1e400", "-1e999", "1e-999", "01", "1.", "+1", "0x10", "1_0", "-", "9" * 5_000))
        )
    return draw.choice((-1, 1)) * 10 ** draw.uniform(-330, 308) if roll < 0.95 else draw.choice((True, False))


def text(draw: Random) -> str:
    """A string: odd, random or long; one in two hundred is vast."""
    roll = draw.random()
    if roll < 0.55:
        return draw.choice(TEXTS)
    if roll < 0.8:
        return "".join(
            chr(draw.choice((draw.randrange(128), draw.randrange(0x110000))))
            for _ in range(draw.randrange(1, 30))
        )
    length = draw.choice(VAST if roll > 0.995 else LONG)
    piece = draw.choice(("word ", "x", "é", "😀", "a b c, ", "\0", "List the boats. "))
    return piece * (length // len(piece))


def value(draw: Random) -> Any:
    """Anything that may stand in JSON."""
    match draw.randrange(12):
        case 0:
            return None
        case 1:
            return draw.random() < 0.5
        case 2 | 3 | 4:
            return number(draw)
        case 5 | 6 | 7:
            return text(draw)
        case 8:
            return []
        case 9:
            return {}
        case 10:
            return draw.choice(
                ([None], [[]], [{}], [1, "a", None], {"a": 1}, {"": {}}, [True], ["", ""], {"type": "text"})
            )
        case _:
            return raw(deep(draw))


def write(content: Any) -> bytes:
    """JSON with raw parts, half surrogates and numbers beyond JSON as they are."""
    written = json.dumps(content)
    mark = json.dumps(_MARK)[1:-1]
    pieces = written.split(f'"{mark}')
    out = [pieces[0]]
    for piece in pieces[1:]:
        inside, _, after = piece.partition(f'{mark}"')
        out += (json.loads(f'"{inside}"'), after)
    return "".join(out).encode("utf-8", "surrogatepass")


def mutate(draw: Random, tree: Any) -> Any:
    """The tree with one part of it replaced, taken away, doubled or added to."""
    found = list(_places(tree))
    if not found:
        return value(draw)
    holder, key = draw.choice(found)
    match draw.randrange(8):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, list):
            holder.insert(key, holder[key])
        case 2 if isinstance(holder, dict):
            holder[draw.choice((text(draw)[:200], "logit_bias", "response_format", "min_p", "echo", "x"))] = (
                value(draw)
            )
        case 3 if isinstance(holder[key], (int, float)):
            holder[key] = number(draw)
        case 4 if isinstance(holder[key], str):
            holder[key] = text(draw)
        case _:
            holder[key] = value(draw)
    return tree


def _places(tree: Any) -> list[tuple[Any, Any]]:
    """(holder, key) of every part of the tree."""
    places: list[tuple[Any, Any]] = []
    waiting = [tree]
    while waiting:
        holder = waiting.pop()
        keys = (
            list(holder)
            if isinstance(holder, dict)
            else range(len(holder))
            if isinstance(holder, list)
            else ()
        )
        for key in keys:
            places.append((holder, key))
            waiting.append(holder[key])
    return places
