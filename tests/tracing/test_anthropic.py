"""Anthropic's SDK passes the same choke point: a trained agent's calls are routed, another's are seen."""

from __future__ import annotations

import importlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from lightning_core.errors import LightningError
from lightning_core.tracing.scope import Scope, agent, rollout_scope
from tests.gateway.conftest import House, open_house
from tests.gateway.scripted import Line, ScriptedEngine
from tests.tracing.hosting import one, scope_of
from tests.tracing.replaying import EVENTS, Answer, Replay, event, replaying

anthropic = pytest.importorskip("anthropic")

pytestmark = pytest.mark.usefixtures("tagging")

ASKED: dict[str, Any] = {
    "model": "m",
    "max_tokens": 50,
    "messages": [{"role": "user", "content": "one two three"}],
}
TOOL = {"name": "look", "description": "Look.", "input_schema": {"type": "object", "properties": {}}}
USE = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"at": 1}}
HEAD = {"id": "msg_1", "type": "message", "role": "assistant", "model": "played"}
USAGE = {"input_tokens": 1, "output_tokens": 1}
END = {"stop_reason": "tool_use", "stop_sequence": None}
WHOLE = Answer(
    (json.dumps({**HEAD, "content": [{"type": "text", "text": "let me"}, USE], **END, "usage": USAGE}).encode(),)
)
STREAMED = Answer(
    tuple(
        map(
            event,
            [
                {"type": "message_start", "message": {**HEAD, "content": [], "usage": USAGE}},
                {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
                {"type": "ping"},
                {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "let "}},
                {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "me"}},
                {"type": "content_block_stop", "index": 0},
                {"type": "content_block_start", "index": 1, "content_block": {**USE, "input": {}}},
                *(
                    {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": part}}
                    for part in ('{"at"', ": 1}")
                ),
                {"type": "content_block_stop", "index": 1},
                {"type": "message_delta", "delta": END, "usage": USAGE},
                {"type": "message_stop"},
            ],
        )
    ),
    EVENTS,
)


def by_create(client: Any) -> None:
    client.messages.create(**ASKED, tools=[TOOL])


def by_stream(client: Any) -> None:
    list(client.messages.create(**ASKED, tools=[TOOL], stream=True))


def by_stream_helper(client: Any) -> None:
    with client.messages.stream(**ASKED, tools=[TOOL]) as stream:
        assert stream.get_final_message().content[0].text == "let me"


def by_raw_response(client: Any) -> None:
    assert client.messages.with_raw_response.create(**ASKED, tools=[TOOL]).parse().content[1].name == "look"


def by_beta(client: Any) -> None:
    client.beta.messages.create(**ASKED, tools=[TOOL])


WAYS = [by_create, by_stream, by_stream_helper, by_raw_response, by_beta]


@pytest.fixture
async def house() -> AsyncIterator[House]:
    """A real gateway, before an engine that says what the hosted model says."""
    async with open_house(ScriptedEngine(says=lambda request, choice: Line("let me", [("look", '{"at": 1}')]))) as house:
        yield house


@pytest.mark.parametrize("way", WAYS)
def test_an_untrained_agents_call_is_left_as_it_was_and_seen(way: Callable[[Any], None]) -> None:
    answer = STREAMED if "stream" in way.__name__ else WHOLE
    with replaying(answer) as server, anthropic.Anthropic(api_key="sk-ant-mine", base_url=server.url) as client:
        way(client)
        with rollout_scope(scope_of()) as scope, agent("checker"):
            way(client)
    outside, inside = server.arrived
    call = one(scope)
    assert inside == outside
    assert (call.dialect, call.agent, call.status, call.trained) == ("anthropic", "checker", "completed", False)
    assert (call.response_id, call.endpoint) == ("msg_1", f"{server.url}/v1")
    assert (call.choices[0].finish_reason, call.choices[0].message["content"]) == ("tool_calls", "let me")
    [tool] = call.choices[0].message["tool_calls"]  # type: ignore[misc]
    assert isinstance(tool, dict)
    assert tool["id"] == "toolu_1"
    assert json.loads(tool["function"]["arguments"]) == {"at": 1}  # type: ignore[index,call-overload,arg-type]
    assert "sk-ant-mine" not in repr(call)
