"""Numbers out of a run's metrics, for rules to compare."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from statistics import fmean

from lightning_core.types import Metrics


def numbers(history: Sequence[Metrics], name: str) -> list[float]:
    """A number of all steps that have it, by rising step; those that are not finite are left out."""
    found = (entry.values[name] for entry in history if name in entry.values)
    return [value for value in found if math.isfinite(value)]


def moving_means(values: Sequence[float], width: int) -> list[float]:
    """The mean of every `width` values in a row."""
    sums = list(accumulate(values, initial=0.0))
    return [(sums[end] - sums[end - width]) / width for end in range(width, len(sums))]


def jitter(values: Sequence[float]) -> float:
    """The deviation of values about their trend: sqrt(mean of squared differences of neighbours / 2).

    Of independent values it is their standard deviation; a slow rise or fall hardly adds to it (von Neumann,
    "Distribution of the ratio of the mean square successive difference to the variance", 1941). The largest
    tenth of the differences, one at least, is left out: a sudden fall is no noise.
    """
    squares = sorted((later - former) ** 2 for former, later in pairwise(values))
    kept = squares[: -max(1, len(squares) // 10)]
    return math.sqrt(fmean(kept) / 2) if kept else 0.0


def total(history: Sequence[Metrics], name: str) -> float:
    """The sum of a number over the steps that have it."""
    return math.fsum(numbers(history, name))
