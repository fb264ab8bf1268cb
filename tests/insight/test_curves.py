"""Curves lose no spike, whatever the number of steps."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_core.insight.curves import curves
from lightning_core.records.types import Metrics


def entries(values: list[float], first: int = 0) -> list[Metrics]:
    return [Metrics(run_id="run", step=first + n, values={"reward": v}) for n, v in enumerate(values)]


def test_few_steps_are_shown_one_by_one() -> None:
    (reward,) = curves(entries([0.1, 0.4, 0.2]), budget=3).values()
    assert [(one.step, one.least, one.mean, one.most, one.count) for one in reward] == [
        (0, 0.1, 0.1, 0.1, 1),
        (1, 0.4, 0.4, 0.4, 1),
        (2, 0.2, 0.2, 0.2, 1),
    ]


def test_two_steps_of_a_bucket_by_hand() -> None:
    first, second = curves(entries([0.0, 1.0, 0.5, 0.25]), budget=2)["reward"]
    assert (first.step, first.last, first.least, first.mean, first.most) == (0, 1, 0.0, 0.5, 1.0)
    assert (second.step, second.last, second.least, second.mean, second.most) == (2, 3, 0.25, 0.375, 0.5)


@given(
    st.lists(st.floats(-1e9, 1e9) | st.just(math.nan) | st.just(math.inf), min_size=1, max_size=200),
    st.integers(1, 40),
    st.integers(0, 50),
)
def test_no_spike_and_no_step_is_lost(values: list[float], budget: int, first: int) -> None:
    found = curves(entries(values, first), budget)["reward"]
    finite = [value for value in values if math.isfinite(value)]
    assert len(found) <= budget
    assert sum(one.count for one in found) == len(finite)
    assert sum(one.lost for one in found) == len(values) - len(finite)
    assert [(one.step, one.last) for one in found] == sorted((one.step, one.last) for one in found)
    shown = [one for one in found if one.count]
    assert max((one.most for one in shown), default=None) == max(finite, default=None)
    assert min((one.least for one in shown), default=None) == min(finite, default=None)
    for one in shown:
        inside = [v for n, v in enumerate(values) if one.step <= first + n <= one.last and math.isfinite(v)]
        assert one.mean == pytest.approx(sum(inside) / len(inside), abs=1e-6)


def test_a_bucket_that_is_full_does_not_change_while_the_run_goes_on() -> None:
    values = [math.sin(n) for n in range(100)]
    before, after = (curves(entries(values[:n]), 64)["reward"] for n in (70, 100))
    assert before[:-1] == after[: len(before) - 1]


def test_a_metric_of_some_steps_has_buckets_where_it_has_values() -> None:
    metrics = entries([0.5] * 10)
    metrics[3] = Metrics(run_id="run", step=3, values={"reward": 0.5, "greedy": 0.75})
    assert [(one.step, one.mean) for one in curves(metrics)["greedy"]] == [(3, 0.75)]
    assert curves([]) == {}


def test_the_curves_of_a_long_run_keep_few_points() -> None:
    values = {f"metric {n}": float(n) for n in range(60)}
    metrics = [Metrics(run_id="run", step=step, values=values) for step in range(2000)]
    found = curves(metrics, 256)
    assert len(found) == 60
    assert all(len(buckets) <= 256 for buckets in found.values())
    assert {bucket.mean for bucket in found["metric 7"]} == {7.0}
