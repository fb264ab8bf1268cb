"""Valid rewards, and the call that each is about."""

from __future__ import annotations

import logging
import math
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import lightning_core as lightning
from lightning_core.errors import RewardError
from lightning_core.records.types import Reward
from lightning_core.tracing.scope import Scope, rollout_scope


def given(value: Any = 1.0, **address: Any) -> Reward:
    with rollout_scope(Scope("r1", 2, "http://gateway", "token")) as scope:
        lightning.reward(value, **address)
    [reward] = scope.rewards
    return reward


@pytest.mark.parametrize(
    ("value", "number"), [(True, 1.0), (3, 3.0), (Decimal("0.5"), 0.5), (np.float32(2), 2.0)]
)
def test_whatever_may_be_returned_may_be_given(value: Any, number: float) -> None:
    reward = given(value)
    assert (reward.rollout_id, reward.attempt, reward.kind, reward.value) == ("r1", 2, "final", number)


@pytest.mark.parametrize("value", [math.nan, math.inf, None, "1.0", [1.0], 10**400, 1.7e308, -1.1e9])
def test_anything_else_is_an_error_at_the_caller(value: Any) -> None:
    with pytest.raises(RewardError, match=r"'r1'.* is not a finite number from -1e9 to 1e9"):
        given(value)


def test_a_reward_is_for_an_agent_or_about_a_call() -> None:
    assert (given(agent="writer").kind, given(agent="writer").agent) == ("final", "writer")
    with pytest.raises(RewardError, match="addressed twice"):
        given(agent="writer", call="chatcmpl-1")
    with pytest.raises(RewardError, match="names no agent"):
        given(agent="")


def test_outside_a_rollout_it_is_ignored_with_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        lightning.reward("anything", call=object())
    assert [record.message for record in caplog.records] == [
        "reward('anything') outside a rollout is ignored"
    ]


def test_after_its_rollout_has_ended_it_is_ignored() -> None:
    with rollout_scope(Scope("r1", 1, "http://gateway", "token")) as scope:
        pass
    lightning.reward(1.0)
    assert scope.rewards == []


MADE_UP = {"id": "lc_run--1-0", "response_metadata": {"finish_reason": "stop"}}


@pytest.mark.parametrize(
    ("call", "found"),
    [
        ("chatcmpl-1", "chatcmpl-1"),
        (SimpleNamespace(id="msg_1"), "msg_1"),
        ({"id": "resp_1"}, "resp_1"),
        (SimpleNamespace(id="lc_run--1", response_metadata={"id": "chatcmpl-2"}), "chatcmpl-2"),
        (SimpleNamespace(response_id="resp_2"), "resp_2"),
        (SimpleNamespace(id="a", tool_call_id="call_1"), "call_1"),
        (SimpleNamespace(**MADE_UP, tool_calls=[{"name": "look", "id": "call_2"}]), "call_2"),
    ],
)
def test_a_call_is_named_by_the_id_that_its_reply_bears(call: Any, found: str) -> None:
    reward = given(-0.5, call=call, reason="rude")
    assert (reward.kind, reward.call_id, reward.agent, reward.reason) == ("intermediate", found, None, "rude")


@pytest.mark.parametrize(
    "call", ["", 5, "lc_run--1", SimpleNamespace(**MADE_UP), SimpleNamespace(response_id="__fake_id__")]
)
def test_what_bears_no_reply_s_id_is_an_error_at_the_caller(call: Any) -> None:
    with pytest.raises(RewardError, match="bears no id of a reply"):
        given(call=call)
