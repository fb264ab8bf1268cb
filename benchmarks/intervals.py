"""95 % intervals over seeds: of means by Student's t; of medians and their ratios by resampling the seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean, median, stdev

RESAMPLES = 2000
T95 = (math.inf, 12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
"""Two-sided 95 % points of Student's t, by degrees of freedom; the last serves for more."""


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate between its bounds."""

    value: float
    low: float
    high: float


def mean_of(values: Sequence[float]) -> Interval:
    """The mean over seeds, by Student's t; one seed alone has no bounds but itself."""
    mean = fmean(values)
    if len(values) == 1:
        return Interval(mean, mean, mean)
    half = T95[min(len(values), len(T95)) - 1] * stdev(values) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half)


def median_of(values: Sequence[float]) -> Interval:
    """The median over seeds; its bounds are percentiles of bootstrap resamples."""
    return _bootstrap(lambda seeds: median(values[i] for i in seeds), len(values))


def ratio_of(
    values: Sequence[float],
    base: Sequence[float],
    of: Callable[[Iterable[float]], float] = median,
) -> Interval:
    """The ratio of two medians, or of what `of` says.

    Both are of the same seeds, so seeds are drawn for both together.
    Raises ValueError if one has more seeds than the other.
    """
    return mean_ratio_of([(values, base)], of)


def mean_ratio_of(
    pairs: Sequence[tuple[Sequence[float], Sequence[float]]], of: Callable[[Iterable[float]], float]
) -> Interval:
    """The mean of such ratios over several (values, base), all of the same seeds."""
    counts = {len(each) for pair in pairs for each in pair}
    if len(counts) > 1:
        raise ValueError(f"{sorted(counts)} seeds can't be compared: run all with equal --seeds")
    return _bootstrap(
        lambda seeds: fmean(
            of(values[i] for i in seeds) / of(base[i] for i in seeds) for values, base in pairs
        ),
        counts.pop(),
    )


def _bootstrap(statistic: Callable[[Sequence[int]], float], seeds: int) -> Interval:
    random = Random(0)
    found = sorted(statistic(random.choices(range(seeds), k=seeds)) for _ in range(RESAMPLES))
    tail = RESAMPLES // 40
    return Interval(statistic(range(seeds)), found[tail - 1], found[-tail])
