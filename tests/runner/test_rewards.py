"""Rewards that an app gives while it runs: stored with the attempt, and what becomes the final one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path
from typing import Any

import pytest

import lightning_core as lightning
from lightning_core.experience.returns import FailurePolicy
from lightning_core.records.types import Reward, Status, Task
from lightning_core.stores.base import Store
from lightning_core.stores.sqlite import MemoryStore, SqliteStore
from tests.runner.test_runner import rollouts, run_all


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    sqlite = f"sqlite:///{tmp_path / 'runs.db'}"
    async with SqliteStore(sqlite) if request.param == "sqlite" else MemoryStore() as opened:
        yield opened


def told(rewards: list[Reward]) -> list[tuple[Any, ...]]:
    return [(one.kind, one.value, one.agent, one.call_id, one.reason, one.source) for one in rewards]


async def test_rewards_of_every_kind_are_stored_before_what_was_returned(store: Store) -> None:
    async def solve(task: Task) -> float:
        lightning.reward(0.25, agent="writer", reason="short")
        lightning.reward(-0.5, call="chatcmpl-1")
        lightning.reward(True)
        return 0.75

    [done] = await run_all(solve, store, rollouts(1))
    assert (done.status, done.reward) == (Status.SUCCEEDED, 0.75)
    assert told((await store.get_rewards(["r0"]))["r0"]) == [
        ("final", 0.25, "writer", None, "short", "app"),
        ("intermediate", -0.5, None, "chatcmpl-1", None, "app"),
        ("final", 1.0, None, None, None, "app"),
        ("final", 0.75, None, None, None, "app"),
    ]


async def test_a_name_of_half_a_character_is_stored_as_whole_text(store: Store) -> None:
    async def solve(task: Task) -> float:
        with lightning.agent("half a parrot \ud83e"):
            lightning.reward(0.5, agent="half a parrot \ud83e")
        return 0.75

    await run_all(solve, store, rollouts(1))
    agents = [one.agent for one in (await store.get_rewards(["r0"]))["r0"]]
    assert agents == ["half a parrot \ufffd", None]


async def test_every_thread_and_task_of_a_rollout_gives_to_its_own(store: Store) -> None:
    async def solve(task: Task) -> float:
        number = float(str(task.input["i"]))

        async def give(value: float) -> None:
            await asyncio.sleep(0)
            lightning.reward(value, call=f"task-{value}")

        async with asyncio.TaskGroup() as group:
            for part in range(5):
                group.create_task(give(number + part / 10))
        with ThreadPoolExecutor(5) as pool:
            for part in range(5):
                pool.submit(copy_context().run, lightning.reward, number + part / 10, call=f"thread-{part}")
        return number

    await run_all(solve, store, rollouts(20), concurrency=20)
    for name, rewards in (await store.get_rewards([f"r{i}" for i in range(20)])).items():
        values = sorted(one.value for one in rewards if one.kind == "intermediate")
        number = float(name[1:])
        assert values == sorted(2 * [number + part / 10 for part in range(5)])


async def test_without_a_returned_value_the_last_final_reward_given_counts(store: Store) -> None:
    def solve(task: Task) -> None:
        lightning.reward(0.25)
        lightning.reward(0.5)
        lightning.reward(1.0, agent="writer")

    [done] = await run_all(solve, store, rollouts(1))
    assert (done.status, done.reward) == (Status.SUCCEEDED, 0.5)
    assert [(one.value, one.agent) for one in (await store.get_rewards(["r0"]))["r0"]] == [
        (0.25, None),
        (0.5, None),
        (1.0, "writer"),
    ]


async def test_without_any_final_reward_the_error_says_what_to_do(store: Store) -> None:
    def solve(task: Task) -> None:
        lightning.reward(1.0, agent="writer")
        lightning.reward(1.0, call="chatcmpl-1")

    [done] = await run_all(solve, store, rollouts(1), on_failure=FailurePolicy(retries=0))
    assert done.status is Status.FAILED
    assert "solve returned None: return one float, call lightning.reward(value)" in str(done.error)


async def test_a_judge_s_rollouts_may_end_without_a_final_reward_in_training_only(store: Store) -> None:
    def solve(task: Task) -> None:
        return None

    asked = [
        *rollouts(1),
        *(one.model_copy(update={"id": "held-out", "split": "validation"}) for one in rollouts(1)),
    ]
    trained, evaluated = await run_all(solve, store, asked, judged=True)
    assert (trained.status, trained.reward) == (Status.SUCCEEDED, None)
    assert evaluated.status is Status.FAILED
    assert "evaluations need a reward of their own" in str(evaluated.error)


async def test_rewards_of_a_failed_attempt_stay_with_it(store: Store) -> None:
    tries = 0

    def solve(task: Task) -> None:
        nonlocal tries
        tries += 1
        lightning.reward(float(tries))
        if tries == 1:
            raise RuntimeError("the first try breaks")

    [done] = await run_all(solve, store, rollouts(1, max_attempts=2))
    assert (done.attempts, done.reward) == (2, 2.0)
    assert {one.value for one in (await store.get_rewards(["r0"]))["r0"]} == {2.0}


async def test_the_final_reward_of_a_failed_attempt_does_not_serve_the_next(store: Store) -> None:
    tries = 0

    def solve(task: Task) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            lightning.reward(1.0)
            raise RuntimeError("the first try breaks")

    [done] = await run_all(solve, store, rollouts(1, max_attempts=2))
    assert (done.status, done.reward) == (Status.FAILED, None)


async def test_a_value_that_is_no_reward_fails_the_rollout_where_it_was_given(store: Store) -> None:
    def solve(task: Task) -> float:
        lightning.reward(float("nan"))
        return 1.0

    [done] = await run_all(solve, store, rollouts(1))
    assert "reward(nan) in rollout 'r0' is not a finite number" in str(done.error)
    assert "in solve" in str(done.error)
