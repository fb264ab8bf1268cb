"""Every dialect's requests and replies come out in one form, and nothing makes it fail."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_core.dialects import DIALECTS
from lightning_core.dialects.responses import Responses
from lightning_core.dialects.tools import CALLS, OUTPUTS
from lightning_core.dialects.transcript import answerer, prompt, replies, text, tokens_read, tokens_written
from lightning_core.records.types import Call, Choice
from tests.build import make_call


def call(request: dict[str, Any] | None = None, *choices: Choice, **fields: Any) -> Call:
    return make_call(request=request or {}, choices=list(choices), **fields)


HI = {"type": "text", "content": "hi"}
ASKED = {"type": "tool_call", "id": "x", "name": "f", "arguments": "{}"}
ANSWERED = {"type": "tool_call_response", "id": "x", "response": "42"}
FUNCTION = {"name": "f", "arguments": "{}"}


@pytest.mark.parametrize(
    ("dialect", "request_", "messages"),
    [
        (
            "chat",
            {
                "messages": [
                    {"role": "system", "content": "hi"},
                    {"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "image_url"}]},
                    {"role": "assistant", "tool_calls": [{"id": "x", "function": FUNCTION}]},
                    {"role": "tool", "tool_call_id": "x", "content": "42"},
                ]
            },
            [
                ("system", [HI]),
                ("user", [HI, {"type": "image_url"}]),
                ("assistant", [ASKED]),
                ("tool", [ANSWERED]),
            ],
        ),
        (
            "responses",
            {
                "instructions": "hi",
                "input": [
                    {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
                    {"type": "function_call", "call_id": "x", **FUNCTION},
                    {"type": "function_call_output", "call_id": "x", "output": "42"},
                ],
            },
            [("system", [HI]), ("user", [HI]), ("assistant", [ASKED]), ("tool", [ANSWERED])],
        ),
        ("responses", {"input": "hi"}, [("user", [HI])]),
        ("completions", {"prompt": "hi"}, [("user", [HI])]),
        ("completions", {"prompt": ["hi", "hi"]}, [("user", [HI]), ("user", [HI])]),
        (
            "anthropic",
            {
                "system": [{"type": "text", "text": "hi"}],
                "messages": [
                    {"role": "user", "content": "hi"},
                    {
                        "role": "assistant",
                        "content": [{"type": "tool_use", "id": "x", "name": "f", "input": {}}],
                    },
                    {
                        "role": "user",
                        "content": [{"type": "tool_result", "tool_use_id": "x", "content": "42"}],
                    },
                ],
            },
            [
                ("system", [HI]),
                ("user", [HI]),
                ("assistant", [{**ASKED, "arguments": {}}]),
                ("user", [ANSWERED]),
            ],
        ),
        (
            "responses",
            {"instructions": None, "input": [3, None, {}]},
            [("user", [{**HI, "content": "3"}])],
        ),
        ("chat", {}, []),
        ("unheard of", {"messages": ["hi"]}, [("user", [HI])]),
    ],
    ids=[
        "chat",
        "responses",
        "input text",
        "completions",
        "prompts",
        "anthropic",
        "nonsense",
        "nothing",
        "unknown",
    ],
)
def test_a_prompt_is_read_whatever_its_dialect(
    dialect: str, request_: dict[str, Any], messages: list[Any]
) -> None:
    read = prompt(call(request_, dialect=dialect))
    assert [(message["role"], message["parts"]) for message in read] == messages


@pytest.mark.parametrize(
    ("tool_calls", "said"),
    [
        (["x"], "x"),
        (3, "3"),
        ({"id": "x"}, '{"id": "x"}'),
        ([{"id": "x", "function": "f"}], '{"id": "x", "function": "f"}'),
        ([{"id": "x", "function": None}], '{"id": "x", "function": null}'),
    ],
)
def test_a_tool_call_that_is_not_well_formed_is_shown_as_it_is(tool_calls: Any, said: str) -> None:
    message = {"role": "assistant", "tool_calls": tool_calls}
    assert text(prompt(call({"messages": [message]}))) == said
    assert text(replies(call({}, Choice(message=message)))) == said


WORDS = st.sampled_from(
    [
        *("messages", "role", "tool", "content", "tool_calls", "function", "type", "text", "id", "input", ""),
        *("function_call", "function_call_output", "tool_use", "tool_result", "name", "system", "prompt"),
    ]
)
ANYTHING = st.recursive(
    st.sampled_from([None, True, 0, 7, 0.5]) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=12,
)
REQUESTS = st.dictionaries(WORDS, ANYTHING, max_size=4)


NAMES = st.sampled_from([dialect.name for dialect in DIALECTS])


@given(NAMES, REQUESTS, REQUESTS)
def test_whatever_was_sent_and_answered_can_be_shown(dialect: str, request: Any, message: Any) -> None:
    anything = call(request, Choice(message=message), dialect=dialect)
    assert isinstance(text(prompt(anything)), str)
    assert [said["finish_reason"] for said in replies(anything)] == [""]
    assert isinstance(text(replies(anything)), str)


@given(ANYTHING)
def test_a_message_may_be_anything(anything: Any) -> None:
    for dialect in DIALECTS:
        for name in (dialect.prompt, dialect.instructions or "system"):
            assert isinstance(text(prompt(call({name: anything}, dialect=dialect.name))), str)
            assert isinstance(list(dialect.offered_tools({"tools": anything})), list)
    assert isinstance(list(Responses.tool_results({"type": anything})), list)
    for message in ({"role": "assistant", "tool_calls": anything}, {"role": "tool", "content": anything}):
        assert isinstance(text(prompt(call({"messages": [message]}))), str)


FIELDS = st.sampled_from(["id", "call_id", "name", "arguments", "input", "action", "operation", "output"])


@given(st.sampled_from(sorted(CALLS | OUTPUTS)), st.dictionaries(FIELDS, ANYTHING))
def test_an_item_of_a_known_type_may_hold_anything(kind: str, fields: dict[str, Any]) -> None:
    item = {**fields, "type": kind}
    assert isinstance(text(prompt(call({"input": [item]}, dialect="responses"))), str)
    assert isinstance(list(Responses.tool_results(item)), list)


def test_each_choice_is_a_reply() -> None:
    message: dict[str, Any] = {"content": "hi", "tool_calls": [{"id": "x", "function": FUNCTION}]}
    both = call({}, Choice(message=message, finish_reason="tool_calls"), Choice(index=1))
    assert replies(both) == [
        {"role": "assistant", "parts": [HI, ASKED], "finish_reason": "tool_calls"},
        {"role": "assistant", "parts": [], "finish_reason": ""},
    ]
    assert text(replies(both)) == "hi f({})"


def test_text_is_one_line() -> None:
    content = [{"type": "text", "text": " a\n b "}, {"type": "image_url"}]
    answered = {"role": "tool", "tool_call_id": "x", "content": "42"}
    assert text(prompt(call({"messages": [{"role": "user", "content": content}, answered]}))) == (
        "a b [image_url] 42"
    )


def test_tokens_that_nobody_gave_are_unknown_not_none_at_all() -> None:
    assert (tokens_read(call()), tokens_written(call({}, Choice()))) == (None, None)
    counted = call({}, Choice(completion_ids=[1, 2]), Choice(index=1, completion_ids=[3]), prompt_ids=[4])
    assert (tokens_read(counted), tokens_written(counted)) == (1, 3)


def test_a_reply_is_named_after_the_model_that_answered() -> None:
    asked = call(model="gpt-5-mini")
    assert answerer(asked, "smollm2") == "smollm2 (the app asked for gpt-5-mini)"
    assert answerer(asked, None) == "gpt-5-mini"
    assert answerer(call(model="gpt-5-mini", endpoint="https://api.openai.com"), "smollm2") == "gpt-5-mini"
    assert answerer(call(model="smollm2"), "smollm2") == "smollm2"
    assert answerer(call(model="policy"), "smollm2") == "smollm2"
