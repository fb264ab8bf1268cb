"""JSON that an app or a model may write is served or refused by name, in every dialect, by a real engine."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from lightning_core.backends.serving.prompts import plain_message
from lightning_core.backends.serving.tool_calls import ToolCalls
from lightning_core.gateway.app import Gateway
from lightning_core.gateway.server import GatewayServer
from lightning_core.gateway.tokens import Tokens
from lightning_core.records.types import Rollout, Task
from lightning_core.stores.sqlite import SqliteStore
from lightning_core.texts.json_text import DEPTH
from tests.backends.serving import serving

pytestmark = pytest.mark.asyncio(loop_scope="module")
Place = tuple[httpx.AsyncClient, SqliteStore]
PATHS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "anthropic": "/v1/messages",
}
ASK = {"role": "user", "content": "go on"}
TOOL: dict[str, Any] = {"name": "look", "description": "looks", "parameters": {"type": "object"}}
DEEP = '{"a":' * 200 + "1" + "}" * 200
HALF = r'{"q": "\ud83d"}'


def requests(arguments: str) -> dict[str, dict[str, Any]]:
    """A conversation that goes on after a call of a tool with these arguments."""
    function = {"name": "look", "arguments": arguments}
    call = {"id": "c", "type": "function", "function": function}
    try:
        given = json.loads(arguments)
    except (ValueError, RecursionError):
        given = None
    block = {"type": "tool_use", "id": "c", "name": "look", "input": given if isinstance(given, dict) else {}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": "found"}
    return {
        "chat": {
            "messages": [
                ASK,
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c", "content": "found"},
            ],
            "tools": [{"type": "function", "function": TOOL}],
        },
        "responses": {
            "input": [
                {**ASK, "type": "message"},
                {"type": "function_call", "call_id": "c", **function},
                {"type": "function_call_output", "call_id": "c", "output": "found"},
            ],
            "max_output_tokens": 2,
        },
        "anthropic": {
            "messages": [
                ASK,
                {"role": "assistant", "content": [block]},
                {"role": "user", "content": [result]},
            ],
        },
    }


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def place(qwen: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Place]:
    """A client with a rollout's token, and the store."""
    url = f"sqlite:///{tmp_path_factory.mktemp('hostile')}/runs.db"
    tokens = Tokens(b"0123456789abcdef")
    rollout = Rollout(id="r1", run_id="run", task=Task(input={}), group_id="g", step=0)
    headers = {"authorization": f"Bearer {tokens.issue(rollout, 1)}"}
    async with SqliteStore(url) as store, serving(qwen) as backend:
        await store.enqueue([rollout])
        await store.lease("w", 1, 600.0)
        async with (
            GatewayServer(Gateway(backend.upstream, store, tokens, agents=None)) as server,
            httpx.AsyncClient(base_url=server.url, headers=headers, timeout=60) as web,
        ):
            yield web, store


async def send(web: httpx.AsyncClient, dialect: str, body: dict[str, Any]) -> httpx.Response:
    limit = {} if dialect == "responses" else {"max_tokens": 2}
    return await web.post(PATHS[dialect], content=json.dumps({**limit, **body}))


@pytest.mark.parametrize("dialect", ["chat", "responses", "anthropic"])
@pytest.mark.parametrize(
    "arguments",
    [
        HALF,
        "[" * 1200,
        "[" * 100_000,
        '{"a":' * 200 + "1" + "}" * 200,
        '{"q": "\ud83d"}',
        "9" * 5000,
        "NaN",
        "",
    ],
    ids=["half", "open", "very open", "deep", "half itself", "long number", "nan", "none"],
)
async def test_a_conversation_goes_on_whatever_arguments_the_model_wrote(
    place: Place, dialect: str, arguments: str
) -> None:
    reply = await send(place[0], dialect, requests(arguments)[dialect])
    if dialect == "anthropic" and arguments == DEEP:  # there the request itself is deep
        assert (reply.status_code, "100 levels" in reply.text) == (400, True)
    else:
        assert reply.status_code == 200 or "maximum context length" in reply.text, reply.text


async def test_half_a_character_reaches_model_and_store_as_the_replacement_character(
    place: Place,
) -> None:
    web, store = place
    bodies: dict[str, dict[str, Any]] = {
        "chat": {"messages": [{"role": "user", "content": "a\ud83db"}], "metadata": {"\udc00": ["\udc00"]}},
        "completions": {"prompt": "a\ud83db"},
        "responses": {"input": "a\ud83db", "max_output_tokens": 2},
        "anthropic": {"messages": [{"role": "user", "content": "a\ud83db"}]},
    }
    before = len((await store.get_calls(["r1"]))["r1"])
    for dialect, body in bodies.items():
        reply = await send(web, dialect, body)
        assert reply.status_code == 200, reply.text
    calls = (await store.get_calls(["r1"]))["r1"][before:]
    for call, body in zip(calls, bodies.values(), strict=True):
        whole = json.loads(json.dumps(body).replace(r"\ud83d", r"\ufffd").replace(r"\udc00", r"\ufffd"))
        assert {name: call.request[name] for name in whole} == whole


@pytest.mark.parametrize("dialect", PATHS)
@pytest.mark.parametrize("depth", [DEPTH + 1, 400, 1020, 100_000])
async def test_what_is_nested_too_deep_is_refused_by_name_wherever_it_stands(
    place: Place, dialect: str, depth: int
) -> None:
    for field in (
        "metadata",
        "tools",
        "temperature",
        "messages",
        "input",
        "prompt",
        "tool_choice",
        "text",
        "stop",
    ):
        body = b'{"%b": %b%b}' % (field.encode(), b"[" * depth, b"]" * depth)
        reply = await place[0].post(PATHS[dialect], content=body)
        assert reply.status_code == 400, reply.text[:200]
        assert f"{DEPTH} levels" in reply.text or "depth" in reply.text


async def test_rewards_and_traces_refuse_the_same(place: Place) -> None:
    for depth in (DEPTH + 1, 1020, 100_000):
        deep = b"[" * depth + b"]" * depth
        for path, body in (
            ("/rollouts/r1/rewards", b'{"value": %b}' % deep),
            ("/rollouts/r1/rewards", deep),
            ("/v1/traces", b'{"resourceSpans": %b}' % deep),
        ):
            reply = await place[0].post(path, content=body, headers={"content-type": "application/json"})
            assert reply.status_code == 400, reply.text[:200]
    reply = await place[0].post("/rollouts/r1/rewards", content=rb'{"value": 1, "reason": "\ud83d"}')
    assert reply.status_code == 200
    assert [reward.reason for reward in (await place[1].get_rewards(["r1"]))["r1"]] == ["\ufffd"]


def parse_call(written: str) -> dict[str, Any] | None:
    """The call that a model wrote; None if it is none."""
    calls = ToolCalls()
    found = calls.feed(f"<tool_call>{written}</tool_call>")[1] + calls.flush()[1]
    return found[0] if found else None


async def test_a_call_that_a_model_wrote_is_whole_and_keeps_its_numbers() -> None:
    call = parse_call(r'{"name": "look", "arguments": {"q": "\ud83d", "n": 123456789012345678901234567890}}')
    assert call is not None
    assert call["function"]["arguments"] == '{"q": "\ufffd", "n": 123456789012345678901234567890}'
    assert parse_call("[" * 100_000) is None
    assert parse_call('{"name": "look", "arguments": {"a": ' + "[" * 500 + "]" * 500 + "}}") is None


async def test_arguments_that_can_not_be_read_are_shown_as_they_are() -> None:
    for arguments in ("[" * 1200, "{", DEEP):
        call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": arguments}}
        plain = plain_message({"role": "assistant", "tool_calls": [call]})
        assert plain["tool_calls"][0]["function"]["arguments"] == arguments
