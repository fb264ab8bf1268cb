"""The worth of a reply: its reward less the mean with other replies, of forks that can be compared."""

from __future__ import annotations

import math
from statistics import stdev

import pytest

from lightning_core.insight.counterfactual import read_fork, reply_value
from lightning_core.insight.verdict import student
from lightning_core.records.types import Call, CallStatus, Fork, Rollout, Sampling, Status, Task
from tests.build import make_call


def ended(status: Status, reward: float | None, error: str | None = None) -> Rollout:
    return Rollout(
        id="r2",
        run_id="r",
        task=Task(input={}),
        group_id="g",
        step=0,
        sampling=Sampling(fork=Fork(rollout_id="r1", call_id="c2")),
        status=status,
        reward=reward,
        error=error,
    )


def call(name: str, status: CallStatus = "completed", error: str | None = None) -> Call:
    return make_call(name, at=1.0, rollout_id="r2", status=status, error=error)


def test_the_value_is_the_reward_less_the_mean_of_the_others() -> None:
    value = reply_value(1.0, [0.0, 1.0, 0.0, 0.0])
    assert (value.mean, value.difference) == (0.25, 0.75)
    shown = [0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0]  # with two of each end of the scale
    wide = student(7) * stdev(shown) / math.sqrt(8)
    assert value.interval == pytest.approx((max(0.0, 0.375 - wide), 0.375 + wide))


def test_without_others_there_is_no_value() -> None:
    value = reply_value(1.0, [])
    assert (value.mean, value.interval, value.difference) == (None, None, None)


def test_a_fork_that_came_to_its_call_has_its_reward() -> None:
    calls = [call("c1"), call("c2")]
    found = read_fork(ended(Status.SUCCEEDED, 0.5), calls)
    assert (found.reward, found.problem, found.call) == (0.5, None, calls[1])
    assert read_fork(ended(Status.FAILED, 0.0, "ValueError"), calls).reward == 0.0  # it counts as a failure
    assert read_fork(ended(Status.FAILED, None, "no connection"), calls).problem == "no connection"


def test_a_fork_that_did_not_come_to_its_call_is_not_compared() -> None:
    refused = [call("c1"), call("x", "refused", "the app left the record")]
    found = read_fork(ended(Status.SUCCEEDED, 1.0), refused)  # its app hid the refusal
    assert (found.reward, found.problem, found.call) == (None, "the app left the record", None)
    early = read_fork(ended(Status.SUCCEEDED, 1.0), [call("c1")])
    assert early.problem == "the app ended after 1 calls without the call of the fork"
