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


SOLVED, OPEN = ('"solved"', (1.0, 1.0)), ('"open"', (0.0, 0.0))


@pytest.mark.parametrize("seed", range(20))
def test_half_of_the_groups_go_by_how_far_the_last_ones_fell_short(seed):
    # (0 + 1) / (6 + 2) = 1/8 and (6 + 1) / (6 + 2) = 7/8, so 1/4 + 1/16 = 5/16 and 11/16 of 16 places
    assert kinds({0: [SOLVED, OPEN] * RECENT}, count=16, seed=seed) == {"solved": 5, "open": 11}


@pytest.mark.parametrize("seed", range(20))
def test_a_value_that_no_group_has_shown_counts_one_half(seed):
    # 1/2 and, with half of the rewards the best, (1/2 + 1) / (1 + 2) = 1/2
    assert kinds({0: [('"open"', (0.0, 1.0))]}, seed=seed) == {"solved": 4, "open": 4}


def test_only_the_last_groups_count():
    before = {0: [('"solved"', (0.0, 0.0))] * 50, 1: [SOLVED, OPEN] * RECENT}
    assert kinds(before, count=16) == {"solved": 5, "open": 11}


def test_rewards_that_are_all_equal_say_nothing():
    assert kinds({0: [OPEN] * 50}) == {"solved": 4, "open": 4}


def test_a_step_has_no_task_twice_and_draws_the_same_again():
    one = [task.id for task in draw(TASKS, "kind", {}, 3, 8, 1)]
    assert len(set(one)) == 8
    assert one == [task.id for task in draw(TASKS, "kind", {}, 3, 8, 1)]
    assert one != [task.id for task in draw(TASKS, "kind", {}, 4, 8, 1)]
    assert one != [task.id for task in draw(TASKS, "kind", {}, 3, 8, 2)]


@pytest.mark.parametrize("rewards", [(), (1.0, 1.0)])
def test_every_task_of_a_value_has_its_turn_before_one_comes_again(rewards):
    before: dict[int, Groups] = {}
    drawn = []
    for step in range(5):
        tasks = draw(TASKS, "kind", before, step, 8, 0)
        before[step] = [(value_of(task, "kind"), rewards) for task in tasks]
        drawn += [task.id for task in tasks]
    assert Counter(drawn) == dict.fromkeys((task.id for task in TASKS), 1)


def test_a_dropped_rollout_has_no_reward_in_its_group():
    given = {"b": (1.0, 0.5), "a": (None, 1.0)}
    rollouts = [
        make_rollouts(1, f"{group}{n}", group_id=group, reward=reward, task=TASKS[0])[0]
        for group, rewards in given.items()
        for n, reward in enumerate(rewards)
    ]
    assert read_groups(rollouts, "kind") == [('"solved"', [1.0]), ('"solved"', [1.0, 0.5])]
