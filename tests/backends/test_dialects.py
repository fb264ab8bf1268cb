"""The same conversation is the same prompt, token for token, whatever dialect it is told in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lightning_core.records.types import Call
from tests.backends.serving import gateway, serving

SCHEMA = {"type": "object", "properties": {"at": {"type": "string"}}}
ARGUMENTS = '{"at": "Köln"}'
FUNCTION = {"name": "look", "description": "Look at it.", "parameters": SCHEMA}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": ARGUMENTS}}

CHAT: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "where"},
        {"role": "assistant", "content": "let me", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "here"},
    ],
    "tools": [{"type": "function", "function": FUNCTION}],
    "max_tokens": 2,
}
RESPONSES: dict[str, Any] = {
    "instructions": "be kind",
    "input": [
        {"role": "user", "content": "where"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "let me"}]},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": ARGUMENTS},
        {"type": "function_call_output", "call_id": "c1", "output": "here"},
    ],
    "tools": [{"type": "function", "strict": True, **FUNCTION}],
    "max_output_tokens": 2,
}
MESSAGES: dict[str, Any] = {
    "system": "be kind",
    "messages": [
        {"role": "user", "content": "where"},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "let me"},
                {"type": "tool_use", "id": "c1", "name": "look", "input": {"at": "Köln"}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "here"}]},
    ],
    "tools": [{"name": "look", "description": "Look at it.", "input_schema": SCHEMA}],
    "max_tokens": 2,
}


async def asked(folder: Path, bodies: list[tuple[str, dict[str, Any]]]) -> list[Call]:
    """The calls that these requests were recorded as."""
    async with serving(folder) as backend, gateway(backend) as (web, store):
        for path, body in bodies:
            reply = await web.post(path, json={"model": "m", **body})
            assert reply.status_code == 200, reply.text
        return (await store.get_calls(["r1"]))["r1"]


async def test_a_conversation_is_one_prompt_in_every_dialect(qwen: Path) -> None:
    chat, responses, messages = await asked(
        qwen,
        [("/v1/chat/completions", CHAT), ("/v1/responses", RESPONSES), ("/v1/messages", MESSAGES)],
    )
    assert chat.prompt_ids
    assert responses.prompt_ids == messages.prompt_ids == chat.prompt_ids


async def test_a_raw_prompt_of_ids_is_recorded_as_it_was_sent(qwen: Path) -> None:
    (call,) = await asked(qwen, [("/v1/completions", {"prompt": [7, 5, 9], "max_tokens": 2})])
    assert call.prompt_ids == [7, 5, 9]
    assert len(call.choices[0].completion_ids or []) in (1, 2)


CACHED: dict[str, tuple[dict[str, Any], Any]] = {
    "/v1/chat/completions": (CHAT, lambda usage: usage["prompt_tokens_details"]["cached_tokens"]),
    "/v1/responses": (RESPONSES, lambda usage: usage["input_tokens_details"]["cached_tokens"]),
    "/v1/messages": (MESSAGES, lambda usage: usage["cache_read_input_tokens"]),
    "/v1/completions": (
        {"prompt": "where is the fox " * 8},
        lambda u: u["prompt_tokens_details"]["cached_tokens"],
    ),
}


@pytest.mark.parametrize("path", CACHED)
async def test_the_usage_has_the_tokens_that_the_engine_reused(qwen: Path, path: str) -> None:
    body, cached = CACHED[path]
    async with serving(qwen) as backend, gateway(backend) as (web, store):
        usages, hits = [], [0]
        for _ in range(2):
            usages.append((await web.post(path, json={"model": "m", **body})).json()["usage"])
            hits.append(backend.sampler.hit_tokens)
        first, second = usages
        assert (cached(first), cached(second)) == (0, hits[2])
        assert hits[1] == 0 < hits[2]
        calls = (await store.get_calls(["r1"]))["r1"]
        if path == "/v1/messages":  # there, input_tokens are those that were not reused
            assert second["input_tokens"] + hits[2] == len(calls[1].prompt_ids or ())
