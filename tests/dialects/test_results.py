"""Results of tools are in the order of their calls, and none is without its call."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from lightning_core.dialects import get_dialect
from lightning_core.errors import ApiError

CALLS = [
    {"id": f"c{n}", "type": "function", "function": {"name": "look", "arguments": "{}"}} for n in range(3)
]
ASKED = {"role": "assistant", "content": None, "tool_calls": CALLS}


def read(dialect: str, **fields: Any) -> list[dict[str, Any]]:
    reader = get_dialect(dialect)()
    messages: list[dict[str, Any]] = reader.read(orjson.dumps(fields), None, (None, None)).chat.messages
    return messages


def chat(*ids: str | None) -> list[dict[str, Any]]:
    """Results of these calls, after the message that asks for three."""
    named = [{"tool_call_id": each} if each is not None else {} for each in ids]
    results = [{"role": "tool", "content": str(each.get("tool_call_id")), **each} for each in named]
    return read("chat", messages=[{"role": "user", "content": "go"}, ASKED, *results])[2:]


def responses(*ids: str) -> list[dict[str, Any]]:
    items = [{"type": "function_call", "call_id": c["id"], **c["function"]} for c in CALLS]
    results = [{"type": "function_call_output", "call_id": each, "output": each} for each in ids]
    return read("responses", input=[{"role": "user", "content": "go"}, *items, *results])[2:]


def anthropic(*ids: str) -> list[dict[str, Any]]:
    uses = [{"type": "tool_use", "id": c["id"], "name": "look", "input": {}} for c in CALLS]
    results = [{"type": "tool_result", "tool_use_id": each, "content": each} for each in ids]
    turns = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": uses},
        {"role": "user", "content": results},
    ]
    return read("anthropic", messages=turns, max_tokens=5)[2:]


@pytest.mark.parametrize("form", [chat, responses, anthropic])
def test_results_that_come_as_the_tools_end_are_put_in_the_order_of_the_calls(form: Any) -> None:
    assert [each["content"] for each in form("c2", "c0", "c1")] == ["c0", "c1", "c2"]
    assert [each["content"] for each in form("c1", "c0")] == ["c0", "c1"]


@pytest.mark.parametrize("form", [chat, responses, anthropic])
def test_a_result_without_its_call_is_refused_by_name(form: Any) -> None:
    with pytest.raises(
        ApiError, match="a tool's result answers 'c7', and no message before it holds a call"
    ) as said:
        form("c0", "c7")
    assert (said.value.status, said.value.code) == (400, "invalid_value")
    assert said.value.param in ("messages", "input")


def test_a_result_before_its_call_is_refused() -> None:
    with pytest.raises(ApiError, match="'c0'"):
        read("chat", messages=[{"role": "tool", "tool_call_id": "c0", "content": "x"}, ASKED])


def test_results_of_several_turns_stay_with_theirs() -> None:
    result = {"role": "tool", "tool_call_id": "c1", "content": "x"}
    other = {"role": "tool", "tool_call_id": "c0", "content": "y"}
    turns = [{"role": "user", "content": "go"}, ASKED, result, other, ASKED, result, other]
    said = [each.get("tool_call_id") for each in read("chat", messages=turns)]
    assert said == [None, None, "c0", "c1", None, "c0", "c1"]


def test_a_result_without_an_id_stays_where_it_is() -> None:
    assert [each["content"] for each in chat("c2", None, "c0")] == ["c2", "None", "c0"]


@pytest.mark.parametrize("calls", [1.5, True, {"id": "a"}, "a", ["a"], [None]])
def test_calls_that_are_no_list_of_objects_are_refused(calls: object) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "", "tool_calls": calls}]
    with pytest.raises(ApiError, match=r"messages\[1\]\.tool_calls must be a list of objects") as refused:
        read("chat", messages=messages)
    assert refused.value.status == 400
