"""The user's return value as a reward, or a refusal that says which task and what to return."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable
from decimal import Decimal
from numbers import Real

from lightning_core.errors import RewardError
from lightning_core.types import Task


def to_reward(value: object, task: Task, solve: Callable[..., object]) -> float:
    """A finite float from a bool, int, float or a scalar of numpy or torch. Raises RewardError."""
    number = _number(value)
    if number is None or not math.isfinite(number):
        name = getattr(solve, "__name__", type(solve).__name__)
        raise RewardError(
            f"the reward of task {task.id!r} is {reprlib.repr(value)}, not a finite number: "
            f"return one float from {name}, such as 1.0 when the task is solved and 0.0 when not"
        )
    return number


def _number(value: object) -> float | None:
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()
    if not isinstance(value, Real | Decimal):
        return None
    try:
        return float(value)
    except (OverflowError, ValueError):
        return None
