"""Evidence credit: uniform where nothing is known, and what other groups show, with numbers by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import sqrt

import numpy as np
import pytest

from lightning_core.credit.base import add_up
from lightning_core.credit.evidence import BatchEvidence
from lightning_core.credit.significance import between_groups, matters, pairs_within
from lightning_core.credit.tabular import state, visits
from lightning_core.records.types import Key, Trajectory
from tests.credit.telling import Said, tell

REPLIES = [(1, 1), (1, 2), (2, 1), (2, 2), (1, 1), (1, 2), (2, 1), (2, 2)]
"""First and second reply of each rollout of a group."""


def group(name: str, decides: int, *, scale: float = 1.0) -> list[Trajectory]:
    """Rollouts of two calls of which one decides; the replies of both are as good as drawn evenly."""
    told = [
        tell(
            place,
            scale * float(replies[decides] == 1),
            Said(shown="task", reply=replies[0]),
            Said(shown="next", reply=replies[1]),
        )
        for place, replies in enumerate(REPLIES)
    ]
    return [rename(each, f"{name}{each.rollout_id}", name) for each in told]


def rename(each: Trajectory, rollout: str, group_id: str) -> Trajectory:
    transitions = tuple(replace(t, rollout_id=rollout) for t in each.transitions)
    return replace(each, rollout_id=rollout, group_id=group_id, transitions=transitions)


def advantages(
    groups: Sequence[Sequence[Trajectory]], of: int = 0, method: BatchEvidence | None = None
) -> dict[Key, float]:
    credit = (method or BatchEvidence()).of_batch(groups)
    return add_up(groups[of], credit(groups[of]))


def test_a_group_alone_is_compared_as_a_whole_and_measured_by_its_whole_returns():
    # returns 1.5, 0 and 0, of which .5 is paid at the first call: less the others' mean, by s = sqrt(.5)
    told = [tell(0, 1.0, Said(reward=0.5), Said()), tell(1, 0.0, Said(), Said()), tell(2, 0.0, Said())]
    found = advantages([told])
    assert found["r0", "c1", 0] == pytest.approx(1.5 / sqrt(0.5))
    assert found["r2", "c0", 0] == pytest.approx(-0.75 / sqrt(0.5))


def test_a_call_that_decides_nothing_in_the_other_groups_counts_less():
    found = advantages([group(name, decides=0) for name in "abcdefgh"])
    assert 0.9 * abs(found["ar0", "c0", 0]) > abs(found["ar0", "c1", 0]) > 0


def test_the_least_weight_is_the_floor():
    groups = [group(name, decides=0) for name in "abcdefgh"]
    found = advantages(groups, method=BatchEvidence(floor=1.0))
    assert abs(found["ar0", "c1", 0]) > 0.5


def test_a_group_has_no_part_in_how_its_own_calls_are_weighed():
    # the other groups say that the first call decides; what this one says changes nothing in its weights
    others = [group(name, decides=0) for name in "bcdefgh"]
    once = advantages([group("a", decides=0), *others])
    twice = advantages([group("a", decides=1), *others])
    ratio = [abs(each["ar0", "c1", 0] / each["ar0", "c0", 0]) for each in (once, twice)]
    assert ratio[0] == pytest.approx(ratio[1])


def test_returns_that_are_all_equal_say_nothing():
    paid = [tell(place, 0.0, Said(reward=place), Said(reward=2 - place)) for place in range(3)]
    assert advantages([paid]) == {}


def test_pairs_of_equal_replies_by_hand():
    # one state, x = 1, 1, -1, -1 with replies 0, 0, 1, 1: k is 2/3 for equal ones, -1/3 for others
    x, zero = np.array([1.0, 1.0, -1.0, -1.0]), np.zeros(4, np.int64)
    found = pairs_within(x, x, zero, zero, np.array([0, 0, 1, 1]), turns=1)
    assert found.total == pytest.approx([4 * 2 / 3 + 8 * 1 / 3])
    assert found.variance == pytest.approx([2 * (4 * (2 / 3) ** 2 + 8 * (1 / 3) ** 2)])


def test_pairs_of_groups_leave_out_the_group_they_are_for():
    # sums 1, 2 and -3 of one reply: without the third 2 * (1 * 2), its square twice over
    found = between_groups(np.array([[1.0], [2.0], [-3.0]]))
    assert [float(each.total) for each in found] == [-12.0, -6.0, 4.0]
    assert float(found[2].variance) == 2 * (2 * 4.0)


def test_turns_count_alike_until_they_differ_plainly():
    known = np.ones(12, dtype=bool)
    assert matters(np.zeros(12), ~known).tolist() == [1.0] * 12
    weak, plain = (matters(np.array([z, *[0.0] * 11]), known) for z in (1.0, 9.0))
    assert weak[1] > 0.8 > 0.2 > plain[1]


def test_an_observation_that_is_shown_again_is_another_state():
    trajectory = tell(0, 0.0, Said(shown="task"), Said(shown="ok"), Said(shown="ok"), Said("v", shown="ok"))
    assert [visit.state for visit in visits(trajectory)] == [
        ("w", "task", 0),
        ("w", "ok", 0),
        ("w", "ok", 1),
        ("v", "ok", 0),
    ]


def test_early_calls_are_not_praised_for_what_later_ones_with_the_same_observation_earn():
    # the right reply is paid at once, at both turns: each is compared with the same turn of the others
    def paid(number: int, *right: bool) -> Trajectory:
        return tell(number, 0.0, *(Said(shown="ok", reply=int(r), reward=float(r)) for r in right))

    told = [paid(0, True, True), paid(1, True, False), paid(2, False, True), paid(3, False, False)]
    found = add_up(told, state(told), scale="none")
    assert found["r3", "c0", 0] < 0 < found["r0", "c1", 0]
    assert found["r0", "c1", 0] == pytest.approx(-found["r3", "c1", 0])
