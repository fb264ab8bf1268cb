"""Tools that are no plain functions: the model is told functions, and the app gets the calls it waits for."""

from __future__ import annotations

import json
from typing import Any

import openai
import orjson
import pytest

from lightning_core.dialects import get_dialect
from lightning_core.dialects.upstream import ChatRequest
from tests.gateway.conftest import House, drain, open_house
from tests.gateway.scripted import Line, ScriptedEngine

PARAMETERS: Any = {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]}
TOOLS: list[Any] = [
    {"type": "function", "name": "look", "parameters": PARAMETERS},
    {"type": "custom", "name": "patch", "description": "Edits files."},
    {
        "type": "namespace",
        "name": "crm",
        "description": "Customers.",
        "tools": [
            {"type": "function", "name": "look", "description": "Finds one.", "parameters": PARAMETERS},
            {"type": "custom", "name": "note"},
        ],
    },
    {"type": "local_shell"},
    {"type": "shell", "environment": {"type": "local"}},
    {"type": "apply_patch"},
    {"type": "web_search", "external_web_access": True},
    {"type": "mcp", "server_label": "x", "server_url": "http://127.0.0.1"},
]
CALLS: dict[str, dict[str, Any]] = {
    "look": {"id": "7"},
    "patch": {"input": 'say "hi"\n'},
    "crm.look": {"id": "8"},
    "crm.note": {"input": "called"},
    "local_shell": {"command": ["ls", "-l"], "timeout_ms": 5},
    "shell": {"commands": ["ls"]},
    "apply_patch": {"type": "update_file", "path": "a.py", "diff": "@@"},
    "made_up": {"x": 1},
}
"""The model's calls, by the tool's name for it."""
WRITTEN = {name: json.dumps(given) for name, given in CALLS.items()}
EXPECTED: list[dict[str, Any]] = [
    {"type": "function_call", "name": "look", "arguments": WRITTEN["look"]},
    {"type": "custom_tool_call", "name": "patch", "input": 'say "hi"\n'},
    {"type": "function_call", "name": "look", "namespace": "crm", "arguments": WRITTEN["crm.look"]},
    {"type": "custom_tool_call", "name": "note", "namespace": "crm", "input": "called"},
    {
        "type": "local_shell_call",
        "action": {"type": "exec", "env": {}, "command": ["ls", "-l"], "timeout_ms": 5},
    },
    {"type": "shell_call", "action": {"commands": ["ls"]}},
    {"type": "apply_patch_call", "operation": {"type": "update_file", "path": "a.py", "diff": "@@"}},
    {"type": "function_call", "name": "made_up", "arguments": WRITTEN["made_up"]},
]
"""The items that the app gets."""


def calls_of(*names: str) -> list[dict[str, Any]]:
    return [
        {"id": f"c_{name}", "type": "function", "function": {"name": name, "arguments": WRITTEN[name]}}
        for name in names
    ]


def calling(*names: str) -> ScriptedEngine:
    """An engine that calls these tools, until it is shown what one gave."""

    def says(request: ChatRequest, choice: int) -> Line:
        seen = request.messages[-1]["role"] == "tool"
        return Line("seen it") if seen else Line(tool_calls=calls_of(*names))

    return ScriptedEngine(says=says)


def results(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each call's result, in the form of its API."""
    found: list[dict[str, Any]] = []
    for item in items:
        result = {"type": f"{item['type']}_output", "call_id": item["call_id"], "output": "fine"}
        match item["type"]:
            case "local_shell_call":  # OpenAI's own: the call's id is called id
                result["id"] = result.pop("call_id")
            case "shell_call":
                outcome = {"type": "exit", "exit_code": 0}
                result["output"] = [{"stdout": "fine", "stderr": "", "outcome": outcome}]
            case "apply_patch_call":
                result["status"] = "completed"
        found.append(result)
    return found


@pytest.mark.parametrize("streamed", [False, True])
async def test_each_tool_is_told_as_a_function_and_its_call_comes_back_as_its_own_item(
    streamed: bool,
) -> None:
    async with open_house(calling(*CALLS)) as house:
        client = house.client(await house.rollout())
        if streamed:
            events: list[Any] = []
            await drain(
                await client.responses.create(model="m", input="go", tools=TOOLS, stream=True), events
            )
            response = events[-1].response
            done = [event.item for event in events if event.type == "response.output_item.done"]
            assert done == response.output
            pieces = [
                event.delta for event in events if event.type == "response.custom_tool_call_input.delta"
            ]
            assert pieces == ['say "hi"\n', "called"]
        else:
            response = await client.responses.create(model="m", input="go", tools=TOOLS)
        items = [item.model_dump(exclude_none=True) for item in response.output]
        call_ids = [item["call_id"] for item in items]
        assert call_ids == [f"c_{name}" for name in CALLS]
        bare = [{k: v for k, v in item.items() if k not in ("id", "call_id", "status")} for item in items]
        assert [{**got, **want} for got, want in zip(bare, EXPECTED, strict=True)] == EXPECTED
        asked = house.engine.requests[0]
        assert [tool["function"]["name"] for tool in asked.tools or []] == list(CALLS)[:-1]
        call = await house.one_call()
        told = call.choices[0].message["tool_calls"]
        assert [each["function"]["name"] for each in told] == list(CALLS)  # as it was sampled

        sent: Any = [{"role": "user", "content": "go"}, *items, *results(items)]
        again = await client.responses.create(model="m", input=sent, tools=TOOLS)
        assert again.output_text == "seen it"
        question, assistant, *given = house.engine.requests[1].messages
        assert question == {"role": "user", "content": "go"}
        assert [(each["id"], each["function"]["name"]) for each in assistant["tool_calls"]] == [
            (f"c_{name}", name) for name in CALLS
        ]
        written = [json.loads(each["function"]["arguments"]) for each in assistant["tool_calls"]]
        assert written == list(CALLS.values())
        assert [each["tool_call_id"] for each in given] == call_ids
        assert all("fine" in each["content"] for each in given)


def dialect_of(name: str) -> Any:
    return get_dialect(name)()


def read(name: str, **fields: Any) -> ChatRequest:
    least = {"responses": {"input": "hi"}, "chat": {"messages": [{"role": "user", "content": "hi"}]}}[name]
    chat: ChatRequest = dialect_of(name).read(orjson.dumps({**least, **fields}), None, (None, None)).chat
    return chat


def test_hosted_tools_are_named_and_not_offered() -> None:
    responses = get_dialect("responses")
    assert responses.hosted_tools({"tools": TOOLS}) == ["web_search", "mcp"]
    assert list(responses.offered_tools({"tools": TOOLS})) == list(CALLS)[:-1]
    assert read("responses", tools=[{"type": "web_search"}]).tools is None
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [TOOLS[0], {"type": "web_search"}]}
    told = read("responses", tools=TOOLS, tool_choice=allowed).tools or []
    assert [tool["function"]["name"] for tool in told] == ["look"]


def test_a_grammar_is_told_and_a_regular_expression_holds_a_call_that_is_forced() -> None:
    lark = {"type": "grammar", "syntax": "lark", "definition": 'start: "a"+'}
    regex = {"type": "grammar", "syntax": "regex", "definition": "a+|b"}
    tools = [{"type": "custom", "name": name, "format": form} for name, form in (("l", lark), ("r", regex))]
    chat = read("responses", tools=tools, tool_choice={"type": "custom", "name": "r"})
    told = [tool["function"] for tool in chat.tools or []]
    assert [each["description"].splitlines()[-1] for each in told] == ['start: "a"+', "a+|b"]
    assert told[1]["parameters"]["properties"] == {"input": {"type": "string", "pattern": "^(?:a+|b)$"}}
    assert chat.constraint is not None
    assert chat.constraint.tools == ("r",)


CUSTOM: list[Any] = [
    {"type": "function", "function": {"name": "look", "parameters": PARAMETERS}},
    {
        "type": "custom",
        "custom": {
            "name": "patch",
            "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: /x/"}},
        },
    },
]


async def test_custom_tools_of_chat_completions() -> None:
    async with open_house(calling("look", "patch")) as house:
        client = house.client(await house.rollout())
        question: Any = {"role": "user", "content": "go"}
        reply = await client.chat.completions.create(model="m", messages=[question], tools=CUSTOM)
        message = reply.choices[0].message
        look, patch = message.tool_calls or []
        assert (look.type, patch.type) == ("function", "custom")
        assert patch.model_dump()["custom"] == {"name": "patch", "input": 'say "hi"\n'}
        told = [tool["function"] for tool in house.engine.requests[0].tools or []]
        assert told[1]["description"].endswith("start: /x/")
        given: list[Any] = [{"role": "tool", "tool_call_id": c.id, "content": "ok"} for c in (look, patch)]
        sent: Any = [question, message.model_dump(exclude_none=True), *given]
        await client.chat.completions.create(model="m", messages=sent, tools=CUSTOM)
        assert house.engine.requests[1].messages[1]["tool_calls"] == calls_of("look", "patch")
        chunks: list[Any] = []
        stream = await client.chat.completions.create(
            model="m", messages=[question], tools=CUSTOM, stream=True
        )
        await drain(stream, chunks)
        raw = [chunk.model_dump() for chunk in chunks if chunk.choices]
        merged = get_dialect("chat").choices(get_dialect("chat").merge(raw))
        assert merged[0].message["tool_calls"] == calls_of("look", "patch")
        assert get_dialect("chat").offered_tools({"tools": CUSTOM}).keys() == {"look", "patch"}


async def test_a_reply_of_another_endpoint_is_recorded_like_the_gateways_own(house: House) -> None:
    items = [{"call_id": f"c{place}", **item} for place, item in enumerate(EXPECTED)]
    (choice,) = get_dialect("responses").choices({"status": "completed", "output": items})
    told = [each["function"] for each in choice.message["tool_calls"]]
    assert [(each["name"], json.loads(each["arguments"])) for each in told] == list(CALLS.items())
    broken = {"status": "completed", "output": [{"type": "shell_call", "call_id": 5, "name": None}]}
    assert get_dialect("responses").choices(broken)[0].message["tool_calls"]


async def test_a_tool_of_an_unknown_type_is_refused_by_name(house: House) -> None:
    client = house.client(await house.rollout())
    with pytest.raises(openai.BadRequestError, match=r"tools\[0\] has the type 'functon'.*namespace"):
        await client.responses.create(model="m", input="hi", tools=[{"type": "functon"}])  # type: ignore[list-item]
