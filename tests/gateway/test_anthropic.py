"""Anthropic Messages through the gateway, on the wire."""

from __future__ import annotations

from typing import Any

import httpx
import orjson
import pytest

from lightning_core.dialects.anthropic import Anthropic
from lightning_core.dialects.upstream import ChatRequest
from lightning_core.errors import ApiError
from tests.gateway.conftest import House, open_house
from tests.gateway.scripted import Line, ScriptedEngine

TOOL = {"name": "look", "description": "Look at it.", "input_schema": {"type": "object"}}
LOOKS: list[dict[str, Any]] = [
    {"id": f"call_{i}", "type": "function", "function": {"name": "look", "arguments": f'{{"at": {i}}}'}}
    for i in range(2)
]


async def post(house: House, token: str, **fields: Any) -> httpx.Response:
    """Ask for a message, as Anthropic's clients do."""
    body = {"model": "m", "max_tokens": 50, "messages": [{"role": "user", "content": "where"}], **fields}
    headers = {"x-api-key": token, "anthropic-version": "2023-06-01"}
    async with httpx.AsyncClient(base_url=house.url, timeout=60) as web:
        return await web.post("/v1/messages", json=body, headers=headers)


def events_of(stream: httpx.Response) -> list[dict[str, Any]]:
    """The events of a stream, each named by its type."""
    events = []
    for block in stream.text.strip().split("\n\n"):
        name, data = block.split("\n")
        content = orjson.loads(data.removeprefix("data: "))
        assert name == f"event: {content['type']}"
        events.append(content)
    return events


def looking() -> ScriptedEngine:
    return ScriptedEngine(says=lambda request, choice: Line("let me", LOOKS))


async def test_every_served_parameter_reaches_the_engine() -> None:
    async with open_house(agents=("another",)) as house:
        reply = await post(
            house,
            await house.rollout(),
            system=[{"type": "text", "text": "be kind", "cache_control": {"type": "ephemeral"}}],
            messages=[{"role": "user", "content": "a b c"}],
            tools=[TOOL],
            tool_choice={"type": "auto", "disable_parallel_tool_use": True},
            max_tokens=2,
            temperature=0.5,
            top_p=0.9,
            stop_sequences=["END"],
            metadata={"user_id": "u"},
            thinking={"type": "disabled"},
            chat_template_kwargs={"enable_thinking": False},
        )
        function = {"name": "look", "description": "Look at it.", "parameters": {"type": "object"}}
        assert house.engine.requests[0] == ChatRequest(
            attempt=("r1", 1),
            messages=[{"role": "system", "content": "be kind"}, {"role": "user", "content": "a b c"}],
            tools=[{"type": "function", "function": function}],
            max_tokens=2,
            temperature=0.5,
            top_p=0.9,
            stop=("END",),
            extra={"enable_thinking": False},
            effort="none",
            parallel=False,
            whole=True,
        )
        call = await house.one_call()
        message = reply.json()
        assert message == {
            "id": f"msg_{call.id}",
            "type": "message",
            "role": "assistant",
            "model": "m",
            "content": [{"type": "text", "text": "a b"}],
            "stop_reason": "max_tokens",
            "stop_sequence": None,
            "usage": message["usage"],
        }
        assert (message["usage"]["input_tokens"], message["usage"]["output_tokens"]) == (5, 2)


@pytest.mark.parametrize(
    ("line", "reason", "sequence"),
    [
        (Line("ok"), "end_turn", None),
        (Line("ok", stop="END"), "stop_sequence", "END"),
        (Line("ok", LOOKS), "tool_use", None),
    ],
)
async def test_why_a_message_ended_is_told(line: Line, reason: str, sequence: str | None) -> None:
    async with open_house(ScriptedEngine(says=lambda request, choice: line)) as house:
        token = await house.rollout()
        whole = (await post(house, token)).json()
        end = events_of(await post(house, token, stream=True))[-2]["delta"]
        told = {"stop_reason": reason, "stop_sequence": sequence}
        assert {name: whole[name] for name in told} == end == told


async def test_streamed_events_come_in_anthropics_order_and_say_the_same() -> None:
    async with open_house(looking()) as house:
        token = await house.rollout()
        whole = (await post(house, token, tools=[TOOL])).json()
        events = events_of(await post(house, token, tools=[TOOL], stream=True))
        kinds = [event["type"] for event in events]
        texts = [event["delta"]["text"] for event in events if event.get("delta", {}).get("text")]
        use = ["content_block_start", "content_block_delta", "content_block_stop"]
        assert kinds == [
            "message_start",
            "content_block_start",
            *["content_block_delta"] * len(texts),
            "content_block_stop",
            *use,
            *use,
            "message_delta",
            "message_stop",
        ]
        assert events[0]["message"]["content"] == []
        assert events[0]["message"]["stop_reason"] is None
        assert events[0]["message"]["usage"]["input_tokens"] == 1
        assert events[-2]["usage"] == whole["usage"]
        blocks = [event["content_block"] for event in events if event["type"] == "content_block_start"]
        written = [event["delta"] for event in events if event["type"] == "content_block_delta"]
        blocks[0]["text"] = "".join(texts)
        for block, delta in zip(blocks[1:], written[len(texts) :], strict=True):
            assert block["input"] == {}
            block["input"] = orjson.loads(delta["partial_json"])
        assert blocks == whole["content"]
        assert [event["index"] for event in events if event["type"] == "content_block_stop"] == [0, 1, 2]
        first, second = await house.calls()
        assert first.choices == second.choices


async def test_an_empty_reply_has_no_content(house: House) -> None:
    async with open_house(ScriptedEngine(says=lambda request, choice: Line())) as house:
        token = await house.rollout()
        assert (await post(house, token)).json()["content"] == []
        kinds = [event["type"] for event in events_of(await post(house, token, stream=True))]
        assert kinds == ["message_start", "message_delta", "message_stop"]


async def test_a_reply_with_tool_uses_comes_back_as_the_message_it_was() -> None:
    async with open_house(looking()) as house:
        token = await house.rollout()
        first = (await post(house, token, tools=[TOOL])).json()
        results: list[Any] = [
            {"type": "tool_result", "tool_use_id": "call_0", "content": "saw 0"},
            {
                "type": "tool_result",
                "tool_use_id": "call_1",
                "is_error": True,
                "content": [{"type": "text", "text": "fog"}],
            },
            {"type": "tool_result", "tool_use_id": "call_1"},
            {"type": "text", "text": "and"},
            {"type": "text", "text": "now?"},
        ]
        turns = [
            {"role": "user", "content": "where"},
            {"role": "assistant", "content": first["content"]},
            {"role": "user", "content": results},
        ]
        await post(house, token, messages=turns, tools=[TOOL])
        recorded = (await house.calls())[0].choices[0].message
        assert house.engine.requests[1].messages == [
            {"role": "user", "content": "where"},
            recorded,
            {"role": "tool", "tool_call_id": "call_0", "content": "saw 0"},
            {"role": "tool", "tool_call_id": "call_1", "content": "fog"},
            {"role": "tool", "tool_call_id": "call_1", "content": ""},
            {"role": "user", "content": "and\nnow?"},
        ]


async def test_arguments_that_are_no_object_keep_their_words() -> None:
    call = {**LOOKS[0], "function": {"name": "look", "arguments": "[1"}}
    async with open_house(ScriptedEngine(says=lambda request, choice: Line("", [call]))) as house:
        reply = (await post(house, await house.rollout())).json()
        assert reply["content"][0]["input"] == {"arguments": "[1"}
        assert (await house.one_call()).choices[0].message["tool_calls"] == [call]


async def test_errors_have_anthropics_form(house: House) -> None:
    token = await house.rollout()
    for reply, status, kind, said in (
        (await post(house, "sk-ant-x"), 401, "authentication_error", "not a token"),
        (
            await post(house, token, container="c"),
            400,
            "invalid_request_error",
            "container = 'c' is not supported",
        ),
    ):
        assert reply.status_code == status
        assert (reply.json()["type"], reply.json()["error"]["type"]) == ("error", kind)
        assert said in reply.json()["error"]["message"]


async def test_the_token_opens_as_either_kind_of_key(house: House, web: httpx.AsyncClient) -> None:
    token = await house.rollout()
    for headers in (
        {"x-api-key": token},
        {"authorization": f"Bearer {token}"},
        {"x-api-key": token, "authorization": "Bearer sk-hosted"},
        {"x-api-key": "sk-ant-hosted", "authorization": f"Bearer {token}"},
    ):
        assert (await web.get("/v1/models", headers=headers)).status_code == 200
    assert (await web.get("/v1/models", headers={"x-api-key": "sk-ant-hosted"})).status_code == 401


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"max_tokens": None}, "max_tokens", "missing_required_parameter"),
        ({"temperature": 1.5}, "temperature", "invalid_value"),
        ({"thinking": "enabled"}, "thinking", "invalid_value"),
        ({"tools": [{"type": "computer_20250124"}]}, "tools[0]", "unsupported_value"),
        ({"tools": [{"description": "x"}]}, "tools[0]", "missing_required_parameter"),
        ({"tools": ["look"]}, "tools[0]", "invalid_value"),
        ({"tools": "look"}, "tools", "invalid_value"),
        ({"tools": [TOOL], "tool_choice": {"type": "some"}}, "tool_choice", "invalid_value"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice", "invalid_value"),
        ({"tool_choice": {"type": "any"}}, "tool_choice", "invalid_value"),
        ({"system": [{"type": "image"}]}, "system[0]", "unsupported_value"),
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": ["hi"]}, "messages[0]", "invalid_value"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role", "invalid_value"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "missing_required_parameter"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "invalid_value"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            "messages[0].content[0]",
            "unsupported_value",
        ),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "thinking"}]}]},
            "messages[0].content[0].thinking",
            "missing_required_parameter",
        ),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "input": "x"}]}]},
            "messages[0].content[0].input",
            "invalid_value",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]},
            "messages[0].content[0].tool_use_id",
            "missing_required_parameter",
        ),
    ],
)
def test_what_can_not_be_honoured_is_refused_by_name(fields: dict[str, Any], param: str, code: str) -> None:
    body = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}], **fields}
    with pytest.raises(ApiError) as caught:
        Anthropic().read(orjson.dumps(body), None, ("r1", 1))
    assert (caught.value.status, caught.value.param, caught.value.code) == (400, param, code)
    assert param in str(caught.value)


RUN_BY_THE_APP: list[Any] = [
    {"type": "bash_20250124", "name": "bash"},
    {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool", "max_characters": 100},
    {"type": "memory_20250818", "name": "memory"},
]


async def test_tools_that_anthropic_defines_and_the_app_runs_are_told_with_their_arguments() -> None:
    lists = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "bash", "arguments": '{"command": "ls"}'},
    }
    engine = ScriptedEngine(says=lambda request, choice: Line(tool_calls=[lists]))
    tools = [TOOL, *RUN_BY_THE_APP, {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}]
    async with open_house(engine) as house:
        reply = await post(house, await house.rollout(), tools=tools)
        assert reply.json()["content"] == [
            {"type": "tool_use", "id": "call_1", "name": "bash", "input": {"command": "ls"}}
        ]
        told = {tool["function"]["name"]: tool["function"] for tool in engine.requests[0].tools or []}
        assert list(told) == ["look", "bash", "str_replace_based_edit_tool", "memory"]
        assert told["bash"]["parameters"]["properties"].keys() == {"command", "restart"}
        editing = told["str_replace_based_edit_tool"]["parameters"]["properties"]
        assert editing["command"]["enum"] == ["view", "create", "str_replace", "insert"]
        assert editing.keys() >= {"path", "view_range", "file_text", "old_str", "new_str", "insert_text"}
        call = await house.one_call()
        assert Anthropic.hosted_tools(call.request) == ["web_search_20250305"]
        schemas = Anthropic.offered_tools(call.request)
        assert {name: schema or {} for name, schema in schemas.items()} == {
            name: function["parameters"] for name, function in told.items()
        }


async def test_a_wish_about_the_context_is_answered_with_what_was_done_about_it(house: House) -> None:
    token = await house.rollout()
    wish = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
    asked: dict[str, Any] = {"context_management": wish, "mcp_servers": [], "betas": ["context-management"]}
    done = {"applied_edits": []}
    assert (await post(house, token, **asked)).json()["context_management"] == done
    events = events_of(await post(house, token, stream=True, **asked))
    assert [event["context_management"] for event in events if event["type"] == "message_delta"] == [done]
    assert "context_management" not in (await post(house, token)).json()


def test_documents_of_plain_text_and_search_results_are_text_for_the_model() -> None:
    plain = {"type": "text", "media_type": "text/plain", "data": "a b"}
    inner = {"type": "content", "content": [{"type": "text", "text": "c"}]}
    found = {"type": "search_result", "source": "http://x", "title": "X", "content": inner["content"]}
    content = [
        {"type": "document", "source": plain, "title": "notes", "context": "of yesterday"},
        {"type": "document", "source": inner},
        found,
        {"type": "text", "text": "what is it?"},
    ]
    result = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "document", "source": plain}]}
    asks = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "look", "input": {}}]}
    turns = [{"role": "user", "content": content}, asks, {"role": "user", "content": [result]}]
    messages, _ = Anthropic.conversation({"messages": turns})
    assert messages[0]["content"] == "notes\nof yesterday\na b\nc\nX\nhttp://x\nc\nwhat is it?"
    assert messages[2] == {"role": "tool", "tool_call_id": "t", "content": "a b"}
    pdf = {"type": "base64", "media_type": "application/pdf", "data": "x"}
    with pytest.raises(ApiError, match=r"source has the type 'base64'.*as text"):
        Anthropic.conversation(
            {"messages": [{"role": "user", "content": [{"type": "document", "source": pdf}]}]}
        )


async def test_a_last_message_of_the_assistant_is_continued(house: House) -> None:
    begun = [{"role": "user", "content": "where"}, {"role": "assistant", "content": "It is"}]
    reply = await post(house, await house.rollout(), messages=begun, max_tokens=9)
    assert reply.status_code == 200, reply.text
    (request,) = house.engine.requests
    assert (request.continues, request.messages) == (True, begun)
