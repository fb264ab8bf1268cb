"""Every dialect's requests and replies come out in one form, and nothing makes it fail."""

from __future__ import annotations

from typing import Any

import pytest

from lightning_core.transcript import prompt, replies, text, tokens_read, tokens_written
from lightning_core.types import Call, Choice


def call(request: dict[str, Any] | None = None, *choices: Choice, **fields: Any) -> Call:
    return Call(
        id="c",
        rollout_id="r",
        attempt=1,
        agent="a",
        trained=True,
        request=request or {},
        choices=list(choices),
        started_at=0,
        ended_at=1,
        **fields,
    )


HI = {"type": "text", "content": "hi"}
ASKED = {"type": "tool_call", "id": "x", "name": "f", "arguments": "{}"}
ANSWERED = {"type": "tool_call_response", "id": "x", "response": "42"}
FUNCTION = {"name": "f", "arguments": "{}"}


@pytest.mark.parametrize(
    ("request_", "messages"),
    [
        (
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
        ({"input": "hi"}, [("user", [HI])]),
        ({"prompt": "hi"}, [("user", [HI])]),
        ({"prompt": ["hi", "hi"]}, [("user", [HI]), ("user", [HI])]),
        (
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
        ({"messages": None, "input": [3, None, {}]}, [("user", [{"type": "text", "content": "3"}])]),
        ({}, []),
    ],
    ids=["chat", "responses", "input text", "completions", "prompts", "anthropic", "nonsense", "nothing"],
)
def test_a_prompt_is_read_whatever_its_dialect(request_: dict[str, Any], messages: list[Any]) -> None:
    assert [(message["role"], message["parts"]) for message in prompt(call(request_))] == messages


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
