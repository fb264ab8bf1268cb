"""The reward: is the number that an answer ends with the right one?"""

import re

NUMBER = re.compile(r"-?\d+(?:,\d{3})*(?:\.\d+)?")
TOLERANCE = 0.005
"""Answers have two decimals."""


def exact_match(reply: str, result: float) -> float:
    """1.0 when the last number of the reply is the result, to two decimals, else 0.0."""
    found = last_number(reply)
    return float(found is not None and abs(found - result) < TOLERANCE)


def last_number(text: str) -> float | None:
    """The last number of a text, or None. A comma separates thousands, nothing else."""
    numbers = NUMBER.findall(text)
    return float(numbers[-1].replace(",", "")) if numbers else None
