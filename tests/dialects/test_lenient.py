"""Replies that hosted models really send, read as the gateway records: one message of a chat."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lightning_core.dialects import get_dialect
from lightning_core.dialects.lenient import ObservedReply
from tests.tracing.replaying import chunk, event


def streamed(dialect: str, *events: bytes) -> ObservedReply:
    return get_dialect(dialect).read_reply(b"".join(events), streamed=True)


def whole(dialect: str, reply: dict[str, Any]) -> ObservedReply:
    return get_dialect(dialect).read_reply(json.dumps(reply).encode(), streamed=False)


def tool(name: str, arguments: str, call_id: str | None = "c1") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def part(index: int | None, **function: str) -> dict[str, Any]:
    return {
        "tool_calls": [
            {"index": index, "id": f"c{index}" if "name" in function else None, "function": function}
        ]
    }


def test_parts_of_tool_calls_are_joined_by_their_index() -> None:
    reply = streamed(
        "chat",
        chunk({"role": "assistant", "content": None, **part(0, name="a", arguments="")}),
        chunk(part(1, name="b", arguments="{")),
        chunk(part(0, arguments='{"x":')),
        chunk(part(1, arguments="}")),
        chunk(part(0, arguments="1}")),
        chunk({}, "tool_calls"),
    )
    calls = [tool("a", '{"x":1}', "c0"), tool("b", "{}", "c1")]
    assert reply.choices[0].message == {"role": "assistant", "content": None, "tool_calls": calls}
    assert (reply.choices[0].finish_reason, reply.complete) == ("tool_calls", True)


def test_tool_calls_without_an_index_are_whole_calls() -> None:
    parts = [chunk({"tool_calls": [tool(name, "{}", name)]}, "tool_calls") for name in "ab"]
    assert streamed("chat", *parts).choices[0].message["tool_calls"] == [
        tool("a", "{}", "a"),
        tool("b", "{}", "b"),
    ]


def test_choices_are_told_apart_and_what_a_message_says_beside_its_content_is_kept() -> None:
    def of(index: int, **delta: str) -> bytes:
        return event({"id": "x", "choices": [{"index": index, "delta": delta, "finish_reason": None}]})

    reply = streamed("chat", of(1, content="b"), of(0, content="a"), of(1, content="b"), of(0, refusal="no"))
    assert [choice.index for choice in reply.choices] == [0, 1]
    assert [choice.message["content"] for choice in reply.choices] == ["a", "bb"]
    assert reply.choices[0].message["refusal"] == "no"
    assert not reply.complete


def test_the_form_of_the_events_does_not_matter() -> None:
    events = [
        chunk({"content": "a"}),
        b": a comment\r\n\r\n",
        chunk({"content": "b"}, "stop"),
        b"data: [DONE]\n\n",
    ]
    plain = streamed("chat", *events)
    assert plain.choices[0].message["content"] == "ab"
    assert streamed("chat", b"".join(events).replace(b"\n", b"\r\n")) == plain
    assert streamed("chat", b"".join(events).replace(b"data: ", b"data:")) == plain
    assert streamed("chat", b"".join(events).rstrip()) == plain


def test_bytes_that_end_anywhere_are_a_reply_that_is_not_complete() -> None:
    everything = b"".join([chunk({"content": "ab"}), chunk({"content": "cd"}, "stop")])
    for end in range(len(everything) - 2):
        reply = streamed("chat", everything[:end])
        assert not reply.complete
        assert [choice.message["content"] for choice in reply.choices] in ([], ["ab"])
    assert streamed("chat", everything).complete


def test_completions_are_read_whole_and_streamed() -> None:
    def of(text: str, reason: str | None = None) -> dict[str, Any]:
        return {"id": "cmpl-1", "choices": [{"index": 0, "text": text, "finish_reason": reason}]}

    reply = whole("completions", of("abc", "length"))
    assert reply.choices[0].message == {"role": "assistant", "content": "abc"}
    assert (reply.choices[0].finish_reason, reply.response_id) == ("length", "cmpl-1")
    assert streamed("completions", *map(event, (of("a"), of("bc", "length")))) == reply


ITEM = {"type": "message", "content": [{"type": "output_text", "text": "let me"}]}
CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"status": "completed"}, "tool_calls"),
        ({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}, "length"),
        ({"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}, "content_filter"),
    ],
)
def test_a_response_is_one_message_whole_and_streamed(fields: dict[str, Any], reason: str) -> None:
    response = {"id": "resp_1", **fields, "output": [{"type": "reasoning", "content": None}, ITEM, CALL]}
    reply = whole("responses", response)
    said = {"role": "assistant", "content": "let me", "tool_calls": [tool("look", "{}")]}
    assert (reply.choices[0].message, reply.choices[0].finish_reason) == (said, reason)
    assert (
        streamed("responses", event({"type": f"response.{fields['status']}", "response": response})) == reply
    )


def test_a_response_that_was_cut_off_holds_the_items_that_were_done() -> None:
    begun = {"id": "resp_1", "status": "in_progress", "output": []}
    events = [
        event({"type": "response.created", "response": begun}),
        event({"type": "response.output_item.done", "item": ITEM}),
    ]
    reply = streamed("responses", *events)
    assert (reply.complete, reply.response_id) == (False, "resp_1")
    assert reply.choices[0].message["content"] == "let me"
    failed = event(
        {"type": "response.failed", "response": {**begun, "status": "failed", "error": {"message": "no"}}}
    )
    assert streamed("responses", *events, failed).error == "no"
    assert streamed("responses", *events, event({"type": "error", "message": "no"})).error == "no"


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("end_turn", "stop"), ("stop_sequence", "stop"), ("max_tokens", "length"), ("refusal", "refusal")],
)
def test_why_an_anthropic_message_ended_is_told_in_the_words_of_a_chat(theirs: str, ours: str) -> None:
    content = [
        {"type": "thinking", "thinking": "hm"},
        {"type": "text", "text": "a"},
        {"type": "text", "text": "b"},
    ]
    reply = whole("anthropic", {"id": "msg_1", "content": content, "stop_reason": theirs})
    assert (reply.choices[0].message["content"], reply.choices[0].finish_reason) == ("ab", ours)


def test_an_error_in_place_of_a_reply_is_an_error() -> None:
    assert whole("chat", {"error": {"message": "no such model", "code": 5}}).error == "no such model"
    assert whole("chat", {"error": "no"}).error == "no"
