"""Rules about replies as such."""

from __future__ import annotations

from typing import Any

import pytest

from lightning_core.air.tools import cut_by_length, repeated_call, unfit_reply
from lightning_core.records.types import Choice
from tests.air.records import asks, call, recorded, run, told, where


def repeated(*items: Any) -> list[tuple[str, str | None]]:
    return where(repeated_call(recorded(*items)))


def test_a_reply_that_was_cut_is_a_signal() -> None:
    cut = Choice(message={"content": "and so"}, finish_reason="length")
    assert where(cut_by_length(recorded(call(1, text="done"), call(2, choices=[cut])))) == [("c2", None)]


SCHEMA = {"type": "object", "properties": {"boats": {"type": "integer"}}, "required": ["boats"]}
JSON = {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}
MUST = {"tool_choice": "required"}
CHOICE = {"structured_outputs": {"choice": ["yes", "no"]}}


def unfit(request: dict[str, Any], *tool_calls: Any, text: str = "", **changes: Any) -> list[str]:
    """Returns the rule's signals about a reply to such a request, which offers the tools `search` and
    `find`."""
    of = call(1, *tool_calls, text=text)
    asked = of.model_copy(update={"request": {**of.request, **request}, **changes})
    return [signal.detail for signal in unfit_reply(recorded(asked))]


def test_a_reply_without_the_form_that_was_asked_for_is_a_signal() -> None:
    assert unfit(JSON, text='{"boats": "two"}') == ["boats: 'two' is not of type 'integer'"]
    assert unfit(JSON, text="two boats") == [
        "not JSON, as was asked: Expecting value: line 1 column 1 (char 0)"
    ]
    assert unfit({"structured_outputs": {"choice": ["yes", "no"]}}, text="maybe") == [
        "'maybe' is none of the choices"
    ]
    (said,) = unfit(MUST, text="two boats")
    assert said.startswith("no call of ")


def test_a_reply_that_fits_or_was_held_to_its_form_is_none() -> None:
    assert unfit(JSON, text='{"boats": 2}') == []
    assert unfit(JSON, asks()) == []
    assert unfit(MUST, asks()) == []
    assert unfit(CHOICE, text="no") == []
    assert unfit({}, text="two boats") == []
    assert unfit({"response_format": {"type": "of another endpoint"}}, text="two boats") == []
    assert unfit(JSON, text="two boats", grammar="start: /.*/") == []
    cut = [Choice(message={"content": '{"boats"'}, finish_reason="length")]
    assert unfit(JSON, choices=cut) == []


TWICE = call(1, asks()), call(2, asks("t2"))
TOLD = run("t1"), run("t2", id="e2")


def test_the_same_tool_with_the_same_arguments_and_result_twice_running_is_a_repetition() -> None:
    again = asks("t2", arguments='{ "word":"boat" }')
    assert repeated(call(1, asks()), call(2, again), *TOLD) == [("c2", "t2")]
    assert repeated(call(1, asks(), asks("t2")), *TOLD) == [("c1", "t2")]
    thrice = call(1, asks()), call(2, again), call(3, asks("t3")), *TOLD, run("t3", id="e3")
    assert repeated(*thrice) == [("c2", "t2"), ("c3", "t3")]
    between = call(2, text="hm", agent="reader", started_at=1.6, id="other")
    assert repeated(call(1, asks()), between, call(2, again), *TOLD) == [("c2", "t2")]


def test_the_wire_alone_tells_of_a_repetition() -> None:
    second = call(2, asks("t2"), prompt=told("t1", "a boat floats"))
    third = call(3, text="so", prompt=[*told("t1", "a boat floats"), *told("t2", "a boat floats")])
    assert repeated(call(1, asks()), second, third) == [("c2", "t2")]


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
    assert repeated(call(1, asks()), other, *TOLD) == []


@pytest.mark.parametrize("arguments", ["", "{}", "{ }", "[]", "null"])
def test_a_request_without_arguments_is_no_repetition(arguments: str) -> None:
    """Handoffs have none, nor has a tool that says what is new."""
    hands = [call(n, asks(f"t{n}", name="transfer_to_reader", arguments=arguments)) for n in (1, 2)]
    assert repeated(*hands, *TOLD) == []


def test_something_else_in_between_makes_it_no_repetition() -> None:
    edits = call(2, asks("t3", name="edit"))
    assert repeated(call(1, asks()), edits, call(3, asks("t2")), *TOLD, run("t3", id="e3")) == []
    assert repeated(call(1, asks()), call(2, text="a boat floats"), call(3, asks("t2")), *TOLD) == []


def test_a_tool_that_tells_different_things_is_worth_asking_again() -> None:
    assert repeated(*TWICE, run("t1", result="queued"), run("t2", id="e2", result="done")) == []
    assert repeated(*TWICE, run("t1", result="queued"), run("t2", id="e2", result="queued")) == [("c2", "t2")]
    polled = [
        run(f"t{n}", id=f"e{n}", result=result) for n, result in enumerate(("queued", "queued", "done"), 1)
    ]
    assert repeated(*TWICE, call(3, asks("t3")), *polled) == []


def test_a_request_that_nobody_knows_the_outcome_of_is_no_repetition() -> None:
    assert repeated(*TWICE) == []
    assert repeated(*TWICE, TOLD[0]) == []


def test_the_same_words_to_the_same_prompt_may_be_meant() -> None:
    """As votes are; and whoever is asked the same again can't know that it answered before."""
    assert repeated(call(1, text="SELECT 1", prompt_ids=[7]), call(2, text="SELECT 1", prompt_ids=[7])) == []
