"""Curves: a run's metrics over its steps, thinned so that a spike is never lost.

A picture has some hundreds of columns, and a run thousands of steps. So several steps in a row share a
bucket, of which a curve keeps the least, the mean and the most.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import groupby

from lightning_core.records.types import Metrics


@dataclass(frozen=True, slots=True)
class Bucket:
    """The values of one metric in a few steps in a row; one step if nothing had to be thinned."""

    step: int
    """The first step of them that has a value."""
    last: int
    """The last one."""
    least: float
    mean: float
    most: float
    """Over the finite values."""
    count: int
    """Steps with a finite value."""
    lost: int = 0
    """Steps whose value is NaN or infinite: they are in none of the three numbers."""


def curves(
    metrics: Sequence[Metrics], budget: int = 400, names: Collection[str] | None = None
) -> dict[str, tuple[Bucket, ...]]:
    """Each metric by its name, in at most `budget` buckets, which are the same steps for all metrics.
    `names`: of these alone.

    `metrics` by rising step, as a store lists them. A bucket in which a metric has no value is left out. A
    bucket has a power of two of steps, so a full one stays as it is until the run outgrows `budget`.
    """
    if budget < 1:
        raise ValueError(f"budget={budget}: a curve has one bucket or more")
    if not metrics:
        return {}
    width = width_of(metrics[0].step, metrics[-1].step, budget)
    found: defaultdict[str, list[Bucket]] = defaultdict(list)
    for _, together in groupby(metrics, lambda entry: entry.step // width):
        values: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
        for entry in together:
            for name, value in entry.values.items():
                if names is None or name in names:
                    values[name].append((entry.step, value))
        for name, of in values.items():
            found[name].append(_bucket(of))
    return {name: tuple(buckets) for name, buckets in sorted(found.items())}


def width_of(first: int, last: int, budget: int) -> int:
    """Steps of one bucket: the least power of two by which the steps from `first` to `last` fit."""
    width = 1
    while last // width - first // width + 1 > budget:
        width *= 2
    return width


def _bucket(values: Sequence[tuple[int, float]]) -> Bucket:
    finite = [value for _, value in values if math.isfinite(value)]
    return Bucket(
        step=values[0][0],
        last=values[-1][0],
        least=min(finite, default=math.nan),
        mean=_mean(finite),
        most=max(finite, default=math.nan),
        count=len(finite),
        lost=len(values) - len(finite),
    )


def _mean(values: Sequence[float]) -> float:
    return sum(value / len(values) for value in values) if values else math.nan
