"""Rules about replies as such."""

from __future__ import annotations

from typing import Any

import pytest

from lightning_core.air.replies import cut_by_length, repeated_call
from lightning_core.types import Choice
from tests.air.records import asks, call, recorded, run, where


def repeated(*items: Any) -> list[tuple[str, str | None]]:
    return where(repeated_call(recorded(*items)))


def test_a_reply_that_was_cut_is_a_signal() -> None:
    cut = Choice(message={"content": "and so"}, finish_reason="length")
    assert where(cut_by_length(recorded(call(1, text="done"), call(2, choices=[cut])))) == [("c2", None)]


def test_the_same_tool_with_the_same_arguments_is_a_repetition() -> None:
    again = asks("t2", arguments='{ "word":"boat" }')
    assert repeated(call(1, asks()), call(2, again)) == [("c2", "t2")]
    assert repeated(call(1, asks(), asks("t2"))) == [("c1", "t2")]
    assert repeated(call(1, asks()), call(2, again), call(3, asks("t3"))) == [("c2", "t2"), ("c3", "t3")]


@pytest.mark.parametrize(
    "other",
    [
        call(2, asks("t2", arguments={"word": "oar"})),
        call(2, asks("t2", name="find")),
        call(2, asks("t2"), agent="reader"),
        call(2, asks("t2"), started_at=1.2),
    ],
    ids=["other arguments", "another tool", "another agent", "at the same time"],
)
def test_another_request_is_no_repetition(other: Any) -> None:
    assert repeated(call(1, asks()), other) == []


def test_a_tool_that_tells_something_else_was_worth_asking_again() -> None:
    twice = call(1, asks()), call(2, asks("t2"))
    assert repeated(*twice, run("t1", result="queued"), run("t2", id="e2", result="done")) == []
    assert repeated(*twice, run("t1", result="queued"), run("t2", id="e2", result="queued")) == [("c2", "t2")]


def test_the_same_reply_to_the_same_prompt_is_a_repetition() -> None:
    first, again = call(1, text="SELECT 1", prompt_ids=[7]), call(2, text="SELECT 1", prompt_ids=[7])
    assert repeated(first, again) == [("c2", None)]
    assert repeated(first, again.model_copy(update={"agent": "reader"})) == []
    assert repeated(first, again.model_copy(update={"prompt_ids": [8]})) == []
    assert repeated(first, again.model_copy(update={"started_at": 1.1})) == []
    assert repeated(first, call(2, text="SELECT 2", prompt_ids=[7])) == []
    assert repeated(call(1, prompt_ids=[7]), call(2, prompt_ids=[7])) == []


def test_without_token_ids_the_prompt_is_what_was_sent() -> None:
    def seen(number: int, **request: Any) -> Any:
        return call(number, text="yes", prompt_ids=None, request={"input": "Go.", **request})

    assert repeated(seen(1), seen(2)) == [("c2", None)]
    assert repeated(seen(1), seen(2, previous_response_id="resp_1")) == []
