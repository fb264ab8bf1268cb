"""Orders with the form that is right. The splits share no item, no city, no name and no wording."""

import random
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

SIZES: Final[Mapping[str, int]] = MappingProxyType({"train": 400, "validation": 40, "test": 100})
NUMBERS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "two": 2,
        "three": 3,
        "five": 5,
        "half a dozen": 6,
        "seven": 7,
        "a dozen": 12,
        "20": 20,
        "a hundred": 100,
    }
)
"""As people write them; every split needs all."""
ITEMS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "train": ("lamp", "chair", "mug", "towel", "pillow", "table", "basket", "candle", "carpet", "vase"),
        "validation": ("clock", "bowl", "mirror"),
        "test": ("blanket", "bottle", "ladder", "kettle", "desk"),
    }
)
CITIES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "train": (
            "Lyon",
            "Oslo",
            "Madrid",
            "Vienna",
            "Porto",
            "Dublin",
            "Rome",
            "Athens",
            "Prague",
            "Berlin",
        ),
        "validation": ("Paris", "Warsaw", "Lisbon"),
        "test": ("London", "Milan", "Zurich", "Brussels", "Turin"),
    }
)
NAMES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"train": ("Ann", "Bo", "Carl", "Dora"), "validation": ("Eve", "Finn"), "test": ("Gil", "Hanna", "Ian")}
)
ASKS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "train": (
            "Please send {n} {items} to our shop in {to}.",
            "We need {n} {items} in {to}.",
            "I would like to order {n} {items}. They go to {to}.",
            "Can you ship {n} {items} to {to}?",
        ),
        "validation": ("Our office in {to} wants {n} {items}.", "{n} {items} for our house in {to}, please."),
        "test": ("My brother in {to} asks for {n} {items}.", "Kindly deliver {n} {items} to us in {to}."),
    }
)
URGENT: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "train": ("We must have them tomorrow.", "It is urgent.", "As fast as you can!"),
        "validation": ("Hurry, please.",),
        "test": ("I need them right now.", "Please be quick."),
    }
)
CALM: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "train": ("Take your time.", "There is no hurry.", "Next month is early enough."),
        "validation": ("Any time is fine.",),
        "test": ("We can wait for some weeks.", "It is not urgent."),
    }
)
FROM: Final[Mapping[str, str]] = MappingProxyType(
    {
        "train": "Greetings from {home}, {name}",
        "validation": "{name}, {home}",
        "test": "Yours, {name} from {home}",
    }
)


def load_tasks(split: str, limit: int | None = None) -> list[dict[str, object]]:
    """The orders of a split, the first `limit` of them; always the same ones.

    Each is a dict with `id`, `text` and `form`, the dict of the form that is right.
    """
    rng = random.Random(f"orders {split}")
    return [{"id": f"{split}-{i}", **_draw(split, rng)} for i in range(SIZES[split])][:limit]


def _draw(split: str, rng: random.Random) -> dict[str, object]:
    item, (words, number) = rng.choice(ITEMS[split]), rng.choice(list(NUMBERS.items()))
    city, home = rng.sample(CITIES[split], 2)
    express = rng.random() < 0.5
    sentences = (
        rng.choice(ASKS[split]).format(n=words, items=f"{item}s", to=city),
        rng.choice((URGENT if express else CALM)[split]),
        FROM[split].format(home=home, name=rng.choice(NAMES[split])),
    )
    form = {"quantity": number, "item": f"{item}s", "city": city, "express": express}
    text = " ".join(sentences)
    return {"text": text[0].upper() + text[1:], "form": form}
