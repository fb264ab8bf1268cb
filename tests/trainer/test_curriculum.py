"""A curriculum draws tasks where groups still differ, and a resumed run draws the same."""

from __future__ import annotations

from collections import Counter

import pytest

from lightning_core.trainer.curriculum import RECENT, Groups, draw, read_groups, value_of
from lightning_core.trainer.plan import make_tasks
from tests.build import make_rollouts

TASKS = make_tasks([{"kind": kind, "number": n} for n in range(20) for kind in ("solved", "open")], "train")


def kinds(told: dict[int, Groups], step: int = 5, count: int = 8, seed: int = 0) -> Counter[str]:
    return Counter(task.input["kind"] for task in draw(TASKS, "kind", told, step, count, seed))


@pytest.mark.parametrize("seed", range(20))
def test_places_are_shared_by_how_often_the_last_groups_differed(seed):
    # six equal groups: (0 + 1) / (6 + 2) = 1/8; six that differed: 7/8; so one place of eight, and seven
    told = {0: [('"solved"', False)] * RECENT + [('"open"', True)] * RECENT}
    assert kinds(told, seed=seed) == {"solved": 1, "open": 7}


@pytest.mark.parametrize("seed", range(20))
def test_what_no_group_has_shown_counts_one_half(seed):
    # of the one 1/2, of the other (1 + 1) / (1 + 2) = 2/3: 4/7 and 3/7 of seven places
    assert kinds({0: [('"open"', True)]}, count=7, seed=seed) == {"solved": 3, "open": 4}


def test_only_the_last_groups_count():
    told = {0: [('"solved"', True)] * 50 + [('"open"', True)] * 50, 1: [('"solved"', False)] * RECENT}
    assert kinds(told) == {"solved": 1, "open": 7}


def test_a_step_has_no_task_twice_and_draws_the_same_again():
    one = [task.id for task in draw(TASKS, "kind", {}, 3, 8, 1)]
    assert len(set(one)) == 8
    assert one == [task.id for task in draw(TASKS, "kind", {}, 3, 8, 1)]
    assert one != [task.id for task in draw(TASKS, "kind", {}, 4, 8, 1)]
    assert one != [task.id for task in draw(TASKS, "kind", {}, 3, 8, 2)]


@pytest.mark.parametrize("differed", [None, True])
def test_every_task_of_a_value_has_its_turn_before_one_comes_again(differed):
    before: dict[int, Groups] = {}
    drawn = []
    for step in range(5):
        tasks = draw(TASKS, "kind", before, step, 8, 0)
        before[step] = [(value_of(task, "kind"), differed) for task in tasks]
        drawn += [task.id for task in tasks]
    assert Counter(drawn) == dict.fromkeys((task.id for task in TASKS), 1)


def test_a_group_differs_by_the_rewards_that_count():
    rewards = {"a": (0.0, 1.0), "b": (1.0, 1.0), "c": (None, 1.0), "d": (0.5, 0.25)}
    rollouts = [
        make_rollouts(1, f"{group}{n}", group_id=group, reward=reward, task=TASKS[0])[0]
        for group, given in rewards.items()
        for n, reward in enumerate(given)
    ]
    assert [differed for _, differed in read_groups(rollouts, "kind")] == [True, False, False, True]
