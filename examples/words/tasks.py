"""Word problems of six kinds. The splits share no name, no thing and no pair of numbers, so no problem."""

import random
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from examples.calc.calculator import evaluate, show

NAMES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "train": ("Mia", "Ben", "Clara", "Omar", "Ivy", "Paul", "Nina", "Leo", "Rosa", "Sam", "Tara", "Hugo"),
        "validation": ("Yara", "Felix", "Greta", "Milan"),
        "test": ("Zoe", "Arthur", "Lina", "Victor", "Edith", "Karim"),
    }
)
THINGS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "train": ("pens", "books", "cards", "stamps", "shells", "coins", "eggs", "nails", "plums", "toys"),
        "validation": ("pears", "badges", "candles"),
        "test": ("marbles", "stickers", "cookies", "bricks"),
    }
)
SIZES: Final[Mapping[str, int]] = MappingProxyType({"train": 400, "validation": 40, "test": 100})
SHARES: Final = ("train", "train", "train", "validation", "test")
"""Which split a pair of numbers belongs to, by (first + 3 * second) modulo 5."""

KINDS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "times": ("A box holds {a} {things}. How many {things} are in {b} boxes?", "{a} * {b}"),
        "left": (
            "{name} has {a} {things} and gives {c} {things} away. How many {things} are left?",
            "{a} - {c}",
        ),
        "more": (
            "{name} has {a} bags of {b} {things} and finds {c} more {things}. How many {things} is that?",
            "{a} * {b} + {c}",
        ),
        "lost": (
            "{name} buys {a} bags of {b} {things} and loses {c} {things}. How many {things} are left?",
            "{a} * {b} - {c}",
        ),
        "split": (
            "{name} has {a} {things} and buys {c} more. {name} splits them over {b} boxes. "
            "How many {things} does a box get?",
            "({a} + {c}) / {b}",
        ),
        "sold": (
            "{name} sells {a} {things} on Monday and {c} {things} on Tuesday for {b} dollars each. "
            "How many dollars does {name} get?",
            "({a} + {c}) * {b}",
        ),
    }
)
"""A problem and its arithmetic."""


def load_tasks(split: str, limit: int | None = None) -> list[dict[str, str]]:
    """The problems of a split, the first `limit` of them; always the same ones.

    Each is a dict with `id`, `problem`, `arithmetic` (one that is right), `answer` and `kind`.
    """
    rng = random.Random(f"word problems {split}")
    kinds = list(KINDS)
    drawn = [_draw(split, kinds[i % len(kinds)], i, rng) for i in range(SIZES[split])]
    rng.shuffle(drawn)
    return drawn[:limit]


def _draw(split: str, kind: str, number: int, rng: random.Random) -> dict[str, str]:
    text, arithmetic = KINDS[kind]
    words = {"name": rng.choice(NAMES[split]), "things": rng.choice(THINGS[split])}
    values = _numbers(split, rng, whole=kind == "split")
    arithmetic = arithmetic.format(**values)
    return {
        "id": f"{split}-{number}",
        "problem": text.format(**words, **values),
        "arithmetic": arithmetic,
        "answer": show(evaluate(arithmetic)),
        "kind": kind,
    }


def _numbers(split: str, rng: random.Random, *, whole: bool) -> dict[str, int]:
    """a, b and c with c below a, where a and b are a pair of this split; `whole`: b divides a + c."""
    while True:
        a, b = rng.randint(3, 20), rng.randint(2, 9)
        c = rng.randint(2, a - 1)
        if SHARES[(a + 3 * b) % len(SHARES)] == split and (not whole or (a + c) % b == 0):
            return {"a": a, "b": b, "c": c}
