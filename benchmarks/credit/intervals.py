"""Medians and ratios over seeds, with 95 % intervals: percentiles of bootstrap resamples of the seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from statistics import median

RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate between its bounds."""

    value: float
    low: float
    high: float


def median_of(values: Sequence[float]) -> Interval:
    """The median over seeds."""
    return _bootstrap(lambda seeds: median(values[i] for i in seeds), len(values))


def ratio_of(values: Sequence[float], base: Sequence[float]) -> Interval:
    """The ratio of two medians. Both are of the same seeds, so seeds are drawn for both together.

    Raises ValueError if one has more seeds than the other.
    """
    if len(values) != len(base):
        raise ValueError(
            f"{len(values)} seeds can't be compared with {len(base)}: run both with equal --seeds"
        )
    return _bootstrap(
        lambda seeds: median(values[i] for i in seeds) / median(base[i] for i in seeds), len(values)
    )


def _bootstrap(statistic: Callable[[Sequence[int]], float], seeds: int) -> Interval:
    random = Random(0)
    found = sorted(statistic(random.choices(range(seeds), k=seeds)) for _ in range(RESAMPLES))
    tail = RESAMPLES // 40
    return Interval(statistic(range(seeds)), found[tail - 1], found[-tail])
