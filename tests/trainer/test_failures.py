"""Failures: whose they are, what they count as, and that a policy learns to avoid those of its making."""

from __future__ import annotations

import asyncio
import random
import subprocess
from typing import Any

import aiohttp
import httpx
import openai
import pytest
import requests
import torch

from lightning_core.algorithms.policy_gradient import GRPO
from lightning_core.credit.base import assign
from lightning_core.credit.whole import uniform
from lightning_core.experience.returns import FailurePolicy, with_lowest
from lightning_core.records.types import Attempt, Call, Choice, Rollout, Status, Task, Trajectory
from lightning_core.runner.outcome import is_of_world
from lightning_core.runner.runner import Runner
from lightning_core.stores.sqlite import MemoryStore
from lightning_core.tracing.scope import Scope, current_scope, report
from lightning_core.trainer.batch import failure_numbers, read_batch
from research.credit.training import loss_of

ASKED = httpx.Request("POST", "http://model/v1/chat/completions")


def answer(status: int) -> httpx.Response:
    return httpx.Response(status, request=ASKED)


def caused(by: BaseException) -> BaseException:
    """A framework's error around the one that was raised first."""
    try:
        try:
            raise by
        except Exception as error:
            raise ValueError("the node failed") from error
    except ValueError as error:
        return error


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError("reset"),
        OSError(110, "timed out by the system"),
        openai.APIConnectionError(request=ASKED),
        openai.APITimeoutError(request=ASKED),
        openai.InternalServerError("broke", response=answer(500), body=None),
        openai.RateLimitError("later", response=answer(429), body=None),
        httpx.ReadTimeout("slow"),
        httpx.HTTPStatusError("bad gateway", request=ASKED, response=answer(502)),
        requests.exceptions.ReadTimeout("slow"),
        requests.exceptions.ConnectionError("refused"),
        aiohttp.ServerDisconnectedError(),
        caused(httpx.ConnectError("refused")),
        ExceptionGroup("two tools", [ValueError("a"), ConnectionRefusedError("b")]),
    ],
    ids=repr,
)
def test_connections_time_outs_of_servers_and_their_errors_are_of_the_world(error: BaseException) -> None:
    assert is_of_world(error)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no JSON"),
        KeyError("answer"),
        FileNotFoundError(2, "no such file"),
        TimeoutError("a query that never ended"),
        subprocess.TimeoutExpired("sql", 5),
        openai.BadRequestError("too long", response=answer(400), body=None),
        SystemExit(500),
        caused(KeyError("answer")),
    ],
    ids=repr,
)
def test_what_the_app_raises_by_itself_is_its_own(error: BaseException) -> None:
    assert not is_of_world(error)


# what is decided when it happens ----------------------------------------------------------------
def replied(trained: bool = True, **fields: Any) -> Call:
    known = {"id": "c", "rollout_id": "r", "attempt": 1, "agent": "a", "started_at": 0.0, "ended_at": 1.0}
    return Call(**{**known, "trained": trained, **fields})


def attempt(**fields: Any) -> Attempt:
    rollout = Rollout(
        id="r", run_id="run", task=Task(input={}), group_id="g", step=0, max_attempts=2, **fields
    )
    return Attempt(rollout=rollout, number=1, worker="w", lease_until=1.0)


def test_a_failure_counts_only_after_a_trained_reply_of_that_attempt_and_only_if_not_the_worlds():
    default, penalise = FailurePolicy(), FailurePolicy(then=-0.5)
    assert default.reward_of_failure(attempt(), [replied()], world=False) == 0.0
    assert penalise.reward_of_failure(attempt(), [replied()], world=False) == -0.5
    assert default.reward_of_failure(attempt(), [replied()], world=True) is None
    for calls in ([], [replied(trained=False)], [replied(status="failed")], [replied(attempt=2)]):
        assert default.reward_of_failure(attempt(), calls, world=False) is None
    assert FailurePolicy(then="drop").reward_of_failure(attempt(), [replied()], world=False) is None


def test_a_validation_has_no_group_whose_lowest_return_could_count():
    asked = attempt(split="validation")
    assert FailurePolicy().reward_of_failure(asked, [replied()], world=False) is None
    assert FailurePolicy(then=-1.0).reward_of_failure(asked, [replied()], world=False) == -1.0


# what it counts as ------------------------------------------------------------------------------
def ended(
    name: str, reward: float, intermediate: float = 0.0, group: str = "g", **agents: float
) -> Trajectory:
    return Trajectory(name, group, "t", reward, (), intermediate, agents)


def test_a_failure_has_the_lowest_return_of_its_group_or_its_penalty_if_that_is_less():
    below = with_lowest([ended("a", 1.0, -3.0), ended("b", -1.0), ended("x", 0.0)], {"x"})
    assert [each.reward for each in below] == [1.0, -1.0, -2.0]
    above = with_lowest([ended("a", 1.0), ended("b", 2.0), ended("x", 0.0)], {"x"})
    assert [each.reward for each in above] == [1.0, 2.0, 0.0]


def test_each_agent_is_compared_with_its_own_returns():
    [_, _, failed] = with_lowest([ended("a", 1.0, q=-5.0), ended("b", -1.0, q=3.0), ended("x", 0.0)], {"x"})
    assert (failed.final("q"), failed.final("p")) == (-5.0, -1.0)


def test_a_group_of_which_all_failed_is_left_out():
    found = with_lowest([ended("x", 0.0), ended("y", 0.0), ended("a", 1.0, group="h")], {"x", "y"})
    assert [each.rollout_id for each in found] == ["a"]


def test_in_groups_of_one_a_failure_has_the_lowest_return_of_all():
    one = [ended(name, reward, group=name) for name, reward in (("a", 1.0), ("b", -2.0), ("x", 0.0))]
    assert [each.reward for each in with_lowest(one, {"x"})] == [1.0, -2.0, -2.0]
    assert [each.rollout_id for each in with_lowest(one[2:], {"x"})] == []


# whether the replies had a part -----------------------------------------------------------------
def group(*pairs: tuple[list[int], bool]) -> tuple[list[Rollout], dict[str, list[Call]]]:
    rollouts, calls = [], {}
    for number, (ids, failed) in enumerate(pairs):
        rollout = attempt().rollout.model_copy(
            update={"id": f"r{number}", "status": Status.FAILED if failed else Status.SUCCEEDED}
        )
        rollouts.append(rollout)
        calls[rollout.id] = [replied(choices=[Choice(completion_ids=ids, logprobs=[-1.0] * len(ids))])]
    return rollouts, calls


def test_failures_that_follow_from_replies_are_told_from_chance_by_numbers_worked_out_by_hand():
    decided = group(([7, 1], True), ([7, 1], True), ([7, 2], False), ([7, 2], False))
    # n = 4, f = 2: total = 1; classes of two: 4 / 2 - 4 / 4 = 1; chance = 1 / 3
    assert failure_numbers(*decided) == pytest.approx(
        {"failures_by_reply": 1.0, "failures_by_chance": 1 / 3, "failures_varied": 1.0}
    )
    mixed = group(([1], True), ([1], False), ([2], True), ([2], False))
    assert failure_numbers(*mixed)["failures_by_reply"] == pytest.approx(0.0)
    unique = failure_numbers(*group(([1], True), ([2], False), ([3], False)))
    assert unique["failures_by_reply"] == pytest.approx(unique["failures_by_chance"])
    assert failure_numbers(*group(([1], False), ([2], False))) == {}


# the trap ---------------------------------------------------------------------------------------
CRASH, PAYS = 0.9, (1.0, 0.3, 0.3, 0.3)
"""The first arm crashes the app in nine of ten pulls and else pays 1; the others pay with these chances."""


async def learn(policy: FailurePolicy, steps: int = 15) -> float:
    """The trap's probability in the end, of .25 at first: a real store, runner, batch, credit and loss."""
    logits, pulls = torch.zeros(1, len(PAYS), dtype=torch.float64), random.Random(0)
    algorithm = GRPO(group_size=8, tasks_per_step=8)

    async def solve(task: Task) -> float:
        scope = current_scope()
        assert scope is not None
        chances = torch.softmax(logits, 1)[0].tolist()
        [arm] = pulls.choices(range(len(PAYS)), chances)
        logprob = float(torch.log_softmax(logits, 1)[0, arm])
        choice = Choice(completion_ids=[arm], logprobs=[logprob])
        place = {"rollout_id": scope.rollout_id, "attempt": scope.attempt, "prompt_ids": [9]}
        report(replied(id=f"{scope.rollout_id}.{scope.attempt}", choices=[choice], policy_version=0, **place))
        if arm == 0 and pulls.random() < CRASH:
            raise ValueError("the app can't read this reply")
        return float(pulls.random() < PAYS[arm])

    def scope_for(attempt: Attempt) -> Scope:
        return Scope(attempt.rollout.id, attempt.number, "http://127.0.0.1:1", token="key")

    async with MemoryStore() as store:
        runner = Runner(solve, store, run_id="run", scope_for=scope_for, on_failure=policy)
        stop = asyncio.Event()
        serving = asyncio.create_task(runner.serve(stop))
        for step in range(steps):
            asked = [
                Rollout(
                    id=f"{step}.{group}.{place}",
                    run_id="run",
                    task=Task(input={"group": group}),
                    group_id=f"{step}.{group}",
                    step=step,
                    max_attempts=policy.max_attempts,
                )
                for group in range(8)
                for place in range(8)
            ]
            await store.enqueue(asked)
            finished = await store.wait_finished([one.id for one in asked], timeout=60)
            batch = await read_batch(store, None, None, finished, lowest=policy.lowest)
            credited, _ = assign(batch.trajectories, uniform, algorithm.baseline, algorithm.scale)
            rows = {t.key: 0 for each in credited for t in each.transitions}
            if not rows:
                continue
            given = logits.clone().requires_grad_()
            loss, _ = loss_of(given, credited, algorithm, rows, 0)
            (gradient,) = torch.autograd.grad(loss, given)
            logits = logits - 4.0 * gradient
        stop.set()
        await serving
    return float(torch.softmax(logits, 1)[0, 0])


async def test_an_arm_that_crashes_the_app_falls_under_the_default_and_rises_where_its_crashes_are_dropped():
    counted, dropped = await learn(FailurePolicy()), await learn(FailurePolicy(then="drop"))
    assert (counted < 0.1, dropped > 0.4) == (True, True), (counted, dropped)
