"""A curriculum draws tasks whose kind falls short of the best reward."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import openai
import pytest

import lightning_core as lightning
from lightning_core.records.types import Rollout
from lightning_core.stores.sqlite import SqliteStore
from lightning_core.tracing.scope import current_scope
from lightning_core.trainer.curriculum import RECENT, Groups, draw, read_groups, value_of
from lightning_core.trainer.folder import RunFolder
from lightning_core.trainer.plan import make_tasks
from tests.backends.scripted import ScriptedBackend
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


def test_a_dropped_rollout_has_no_reward_and_an_added_group_is_left_out():
    given = {10: (1.0, 0.5), 2: (None, 1.0), 11: (0.0, 0.0)}
    rollouts = [
        make_rollouts(1, f"{place}-{n}", place=f"{place}-{n}", reward=reward, task=TASKS[0])[0]
        for place, rewards in given.items()
        for n, reward in enumerate(rewards)
    ]
    assert read_groups(rollouts, "kind", 11) == [('"solved"', [1.0]), ('"solved"', [1.0, 0.5])]


async def solve(task: lightning.Task) -> float:
    """One kind is always solved, of the other every second rollout."""
    async with openai.AsyncOpenAI(api_key="none") as client:
        with lightning.agent("writer"):
            await client.chat.completions.create(
                model="policy", messages=[{"role": "user", "content": "go"}], max_completion_tokens=2
            )
    scope = current_scope()
    assert scope is not None
    return 1.0 if task.input["kind"] == "solved" else float(scope.rollout_id.endswith("-1"))


def drawn(folder: Path, *lives: int, **options: Any) -> dict[int, list[str]]:
    """The tasks of each step, of a run that ended after so many steps, and was resumed."""
    for steps in lives:
        lightning.Trainer(
            agents=["writer"],
            algorithm=lightning.GRPO(group_size=2, tasks_per_step=6, curriculum="kind", **options),
            steps=steps,
            folder=folder,
            resume=steps != lives[0],
            keep_checkpoints=1,
            progress=False,
            backend=ScriptedBackend(),
        ).fit(solve, train=TASKS)

    async def read() -> list[Rollout]:
        async with SqliteStore(RunFolder(folder, resume=True).store_url) as store:
            return await store.find_rollouts(folder.name, split="train")

    found: dict[int, list[str]] = {}
    for rollout in sorted(asyncio.run(read()), key=lambda each: each.id):
        found.setdefault(rollout.step, []).append(rollout.task.id)
    return found


@pytest.mark.parametrize("options", [{}, {"staleness": 1}, {"staleness": 1, "dynamic_sampling": 1}])
def test_a_resumed_run_draws_what_one_in_peace_does(options, tmp_path):
    peace = drawn(tmp_path / "peace", 7, **options)
    assert drawn(tmp_path / "resumed", 3, 5, 7, **options) == peace
    if not options:
        solved = [sum(TASKS[i].id in tasks for i in range(0, 40, 2)) for tasks in peace.values()]
        # 3 of 6 at first; then 1/4 + 1/2 * 1/8 / (1/8 + 1/2)
        assert solved[0] == 3
        assert sum(solved[3:]) < 3 * len(solved[3:])
