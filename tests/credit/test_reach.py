"""Numbers that no update can be made from: their group is left out and counted, and changes no other."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import get_args

import pytest

from lightning_core.credit.base import Baseline, Comparison, Credit, Peer, Scale, assign
from lightning_core.credit.discounted import Discounted, turn
from lightning_core.credit.relevance import Relevance
from lightning_core.credit.tabular import Tabular
from lightning_core.credit.whole import uniform
from lightning_core.records.types import LARGEST_REWARD, Trajectory
from tests.credit.telling import Said, tell

METHODS: list[Credit] = [uniform, turn, Discounted(), Tabular(), Relevance()]
SCHEMES = [
    (baseline, scale)
    for baseline in get_args(Baseline)
    for scale in get_args(Scale)
    if (baseline, scale) != ("none", "std")
]


def group(name: str, first: int, *rewards: float, on_the_way: float = 0.0) -> list[Trajectory]:
    calls = [Said(shown="s", reply=0, reward=on_the_way), *(Said(after=i, shown=f"{i}") for i in range(2))]
    return [replace(tell(first + i, reward, *calls), group_id=name) for i, reward in enumerate(rewards)]


def numbers(credited: Iterable[Trajectory]) -> dict[tuple[str, str, int], float | None]:
    return {t.key: t.advantage for each in credited for t in each.transitions}


@pytest.mark.parametrize(("baseline", "scale"), SCHEMES)
@pytest.mark.parametrize("method", METHODS)
def test_no_reward_that_is_accepted_overflows_in_any_method(
    method: Credit, baseline: Baseline, scale: Scale
) -> None:
    most = LARGEST_REWARD
    extreme = [
        replace(each, intermediate=sign * 10_000 * most)
        for sign, each in zip((1, -1, 1), group("g", 0, most, -most, most), strict=True)
    ]
    credited, report = assign([*extreme, *group("h", 10, 0.0, 1.0)], method, baseline, scale)
    found = numbers(credited)
    assert report.unusable == ()
    assert "g" in {each.group_id for each in credited}
    assert all(a is None or abs(a) <= 1e15 for a in found.values())


@pytest.mark.parametrize("scale", ["std", "batch", "none"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("bad", [1.7e308, -1e200, math.inf])
def test_a_group_with_a_return_beyond_reach_is_left_out_and_changes_no_other(
    method: Credit, scale: Scale, bad: float
) -> None:
    good, spoilt = group("good", 0, 0.0, 1.0, 1.0), group("spoilt", 10, bad, -bad, 1.0)
    on_the_way = group("on the way", 20, 0.0, 1.0, on_the_way=bad)
    credited, report = assign([*spoilt, *good, *on_the_way], method, "mean", scale)
    alone, _ = assign(good, method, "mean", scale)
    assert numbers(credited) == numbers(alone)
    assert (report.groups, report.unusable, report.zero_variance_groups) == (3, ("spoilt", "on the way"), 0)


def _of(value: float) -> Peer:
    return {("r0", "c0", 0): value, ("r1", "c0", 0): 0.0}


@pytest.mark.parametrize(
    "comparison",
    [
        *(Comparison((_of(bad),), baseline=False) for bad in (math.nan, math.inf, 1e200, 1e16)),
        Comparison((_of(1.0),), baseline=False, weight=math.nan),
        Comparison((_of(1.0),), baseline=False, weight=1e300),
        Comparison((_of(1.0),), baseline=False, targets={("r0", "c0", 0): math.nan}),
    ],
)
@pytest.mark.parametrize("scale", ["std", "batch", "none"])
def test_a_method_that_gives_numbers_beyond_reach_loses_that_group_alone(
    comparison: Comparison, scale: Scale
) -> None:
    def method(rollouts: Sequence[Trajectory]) -> list[Comparison]:
        return [comparison] if rollouts[0].group_id == "spoilt" else list(uniform(rollouts))

    good = group("good", 10, 0.0, 1.0)
    credited, report = assign([*group("spoilt", 0, 0.0, 1.0), *good], method, "mean", scale)
    assert numbers(credited) == numbers(assign(good, uniform, "mean", scale)[0])
    assert (report.unusable, report.zero_variance_groups) == (("spoilt",), 0)
