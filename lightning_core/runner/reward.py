"""The user's return value as a reward, or a refusal that says which task and what to return."""

from __future__ import annotations

import reprlib
from collections.abc import Callable

from lightning_core.errors import RewardError
from lightning_core.tracing.rewards import as_reward
from lightning_core.types import REWARD_RANGE, Task


def to_reward(value: object, task: Task, solve: Callable[..., object]) -> float:
    """A reward from a bool, int, float or a scalar of numpy or torch. Raises RewardError."""
    number = as_reward(value)
    if number is None:
        raise RewardError(
            f"the reward of task {task.id!r} is {reprlib.repr(value)}, not {REWARD_RANGE}: "
            f"return one float from {_name(solve)}, such as 1.0 when the task is solved and 0.0 when not"
        )
    return number


def no_reward(task: Task, solve: Callable[..., object]) -> RewardError:
    """Nothing was returned, and nothing was given otherwise."""
    hint = getattr(solve, "reward_hint", None) or (
        "return one float, call lightning.reward(value) inside it, or post one to LIGHTNING_REWARD_URL"
    )
    return RewardError(
        f"task {task.id!r} ended without a final reward, and {_name(solve)} returned None: {hint}. (A judge "
        "scores training rollouts only: evaluations need a reward of their own, or leave validation empty)"
    )


def _name(solve: Callable[..., object]) -> str:
    return getattr(solve, "__name__", type(solve).__name__)
