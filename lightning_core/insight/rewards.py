"""A run's rewards, each defined once: for the terminal, the list of runs, the console, summary and curve.

A run has two kinds. The training reward of step n is the mean of the rollouts that update n learnt from. The
policy before that update sampled them. The held-out reward after n updates is the mean over the validation
tasks: greedy is without chance, sampled is at temperature 1. A run is summed up by its first and last greedy
held-out reward; without two evaluations by the training reward of its first and last steps; without a step by
the one evaluation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from lightning_core.records.types import Metrics

LEAST = 3
"""Steps of each end of a run, if it has so many."""
WIDTH = 5
"""Steps of a running mean."""


@dataclass(frozen=True, slots=True)
class Change:
    """A reward at the begin of a run and at its end."""

    kind: Literal["held-out", "training", "once"]
    """"once": held-out, of a single evaluation, so that first and last are one value."""
    first: float
    last: float
    steps: int = 0
    """Training steps that each of the two is the mean of."""


def reward_curve(metrics: Sequence[Metrics]) -> tuple[list[int], list[float]]:
    """(updates made, mean reward) of each step; a step without rollouts has none."""
    points = [(each.step + 1, each.values["reward"]) for each in metrics if "reward" in each.values]
    return [step for step, _ in points], [reward for _, reward in points]


def running_mean(values: Sequence[float], width: int = WIDTH) -> list[float]:
    """Mean of each value and up to `width - 1` before it."""
    windows = [values[max(0, end - width) : end] for end in range(1, len(values) + 1)]
    return [fmean(window) for window in windows]


def end_width(steps: int) -> int:
    """How many of steps are a run's first ones, and its last: a quarter, but three of six and more."""
    return max(1, min(LEAST, steps // 2), steps // 4)


def training_change(rewards: Sequence[float]) -> Change | None:
    """The training reward of the first and of the last steps; None without a step."""
    if not rewards:
        return None
    width = end_width(len(rewards))
    return Change("training", fmean(rewards[:width]), fmean(rewards[-width:]), width)


def agent_changes(metrics: Sequence[Metrics]) -> dict[str, Change]:
    """For each agent the training reward of the rollouts in which it acted, as `training_change` has it."""
    found: dict[str, list[float]] = {}
    for each in metrics:
        for name, value in each.values.items():
            if name.startswith("agent/") and name.endswith("/reward"):
                found.setdefault(name.removeprefix("agent/").removesuffix("/reward"), []).append(value)
    made = {name: training_change(values) for name, values in found.items()}
    return {name: each for name, each in made.items() if each is not None}


def change(greedy: Sequence[float], rewards: Sequence[float]) -> Change | None:
    """Returns the change that sums up a run: `greedy` are its evaluations in order, `rewards` its training
    rewards."""
    if len(greedy) > 1:
        return Change("held-out", greedy[0], greedy[-1])
    if (trained := training_change(rewards)) is not None or not greedy:
        return trained
    return Change("once", greedy[0], greedy[0])
