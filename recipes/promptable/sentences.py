"""Sentences that name a convention, in several wordings, of which the policy is never shown the last two.

`{}` stands for what differs between the conventions of one topic. Fillers name no convention.
"""

from __future__ import annotations

import random
from typing import Final

HELD_OUT: Final = 2
"""Wordings of each convention, and fillers, that are kept from the policy."""

TOPICS: Final = {
    "revenue": "revenue",
    "kept_list": "kept",
    "kept_count": "kept",
    "top": "top",
    "large": "large",
}
"""The topic of each form of question whose answer hangs on a convention that a sentence may name."""

_SUM = (
    "Revenue is the sum of {}.",
    "For revenue, sum {}.",
    "Sum {} for the revenue.",
    "Compute revenue as the total of {}.",
    "The revenue of rows is {}, summed.",
    "Take {} and sum it for revenue.",
    "Revenue means the total of {}.",
    "The total of {} is the revenue.",
)
_TIES = (
    "Break ties by {}.",
    "Ties are taken in the order of {}.",
    "When rows tie, sort them by {}.",
    "Sort equal rows by {}.",
    "Order by the number, then by {}.",
    "Rows with equal numbers are in the order of {}.",
    "In a tie the {} decides.",
    "Rows that tie go by {}.",
)
_LARGE = (
    "Large means larger than {}.",
    "Large is a size above {}.",
    "Rows are large if their size is over {}.",
    "Compare the size with {} for large.",
    "For large, take a size of more than {}.",
    "A size is large above {}.",
    "Large rows have more than {}.",
    "A row is large when its size is larger than {}.",
)
WORDINGS: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "revenue": {
        "gold": tuple(each.format("price times quantity") for each in _SUM),
        "price": tuple(each.format("price") for each in _SUM),
        "quantity": tuple(each.format("quantity") for each in _SUM),
    },
    "kept": {
        "gold": (
            "Leave out rows that are deleted.",
            "Leave out deleted rows.",
            "Ignore deleted rows.",
            "Rows with deleted = 1 do not count.",
            "Take only rows with deleted = 0.",
            "Rows that are deleted do not count.",
            "Ignore rows that are deleted.",
            "Deleted rows do not count.",
        ),
        "ignore": (
            "Count deleted rows too.",
            "Include rows that are deleted.",
            "Deleted rows count like all others.",
            "Include deleted rows.",
            "Take all rows, deleted or not.",
            "Rows that are deleted count too.",
            "Deleted rows count too.",
            "Include all rows, deleted or not.",
        ),
        "deleted": (
            "Only deleted rows count.",
            "Take only rows with deleted = 1.",
            "Show deleted rows only.",
            "Only rows that are deleted count.",
            "Leave out rows with deleted = 0.",
            "Take deleted rows only.",
            "Show only rows that are deleted.",
            "Only rows with deleted = 1 count.",
        ),
    },
    "top": {
        "gold": tuple(each.format("name") for each in _TIES),
        "id": tuple(each.format("id") for each in _TIES),
        "none": (
            "Leave ties to chance.",
            "Do not break ties.",
            "Order by the number alone.",
            "When rows tie, take any of them.",
            "Do not sort equal rows.",
            "In a tie any row will do.",
            "Do not sort rows that tie.",
            "When rows tie, leave it to chance.",
        ),
    },
    "large": {
        "gold": tuple(each.format("the average") for each in _LARGE),
        "50": tuple(each.format("50") for each in _LARGE),
        "80": tuple(each.format("80") for each in _LARGE),
    },
}
"""Wordings by topic and convention, named as in `examples.sql.questions`; "gold" is the app's."""

FILLERS: Final = (
    "Answer with one query and nothing else.",
    "Use only the tables that are listed.",
    "Text is in single quotes.",
    "Keep the query short.",
    "Write plain SQL.",
    "Use the columns as they are spelt.",
)


def draw_said(rng: random.Random) -> dict[str, str]:
    """The convention of none to all topics, by topic."""
    topics = rng.sample(list(WORDINGS), rng.randint(0, len(WORDINGS)))
    return {topic: rng.choice(list(WORDINGS[topic])) for topic in topics}


def say(seed: str, said: dict[str, str], rng: random.Random, *, held_out: bool = False) -> str:
    """The seed prompt and a sentence for each convention, in a wording that is shown or held out."""
    told = [rng.choice(_part(WORDINGS[topic][choice], held_out)) for topic, choice in said.items()]
    return " ".join([seed, *told])


def bank() -> list[str]:
    """All sentences that the policy was never shown, those that name no convention among them."""
    wordings = [_part(each, True) for choices in WORDINGS.values() for each in choices.values()]
    return [sentence for each in [*wordings, _part(FILLERS, True)] for sentence in each]


def fillers() -> tuple[str, ...]:
    """Sentences that name no convention, as the policy is shown them."""
    return _part(FILLERS, False)


def _part(wordings: tuple[str, ...], held_out: bool) -> tuple[str, ...]:
    return wordings[-HELD_OUT:] if held_out else wordings[:-HELD_OUT]
