"""The rule of a valid reward, and the words of a refusal."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from lightning_core.errors import RewardError
from lightning_core.records.types import Task
from lightning_core.runner.outcome import to_reward

TASK = Task(id="t1", input={})


def my_app(task: Task) -> float:
    return 1.0


@pytest.mark.parametrize(
    ("value", "reward"),
    [
        (True, 1.0),
        (False, 0.0),
        (3, 3.0),
        (-0.5, -0.5),
        (np.float32(0.5), 0.5),
        (np.int64(2), 2.0),
        (np.bool_(True), 1.0),
        (np.array(0.25), 0.25),
        (Fraction(1, 2), 0.5),
        (Decimal("0.5"), 0.5),
        (-(10**9), -1e9),
    ],
)
def test_scalars_are_rewards(value: object, reward: float) -> None:
    found = to_reward(value, TASK, my_app)
    assert (found, type(found)) == (reward, float)


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        math.inf,
        -math.inf,
        None,
        "1.0",
        b"1",
        1j,
        [1.0],
        {"reward": 1.0},
        np.array([1.0]),
        np.float64("nan"),
        10**400,
        -1.7e308,
        1.1e9,
        np.float64(1e200),
        Decimal("sNaN"),
        object(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_anything_else_is_refused_with_task_value_and_function(value: object) -> None:
    with pytest.raises(RewardError, match=r"(?s)task 't1'.*not a finite number.*one float from my_app"):
        to_reward(value, TASK, my_app)


def test_a_refusal_shows_the_value_and_the_bound() -> None:
    with pytest.raises(RewardError, match=r"is 1e\+300, not a finite number from -1e9 to 1e9"):
        to_reward(1e300, TASK, my_app)
    with pytest.raises(RewardError, match="is 'yes', not"):
        to_reward("yes", TASK, my_app)
