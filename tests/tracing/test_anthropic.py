"""Anthropic's SDK passes the same choke point: a trained agent's calls are routed, another's are seen."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from lightning_core.testing.server import GatewayDouble
from lightning_core.tracing.scope import Scope, agent, read_unseen, rollout_scope
from tests.gateway.conftest import open_house
from tests.gateway.scripted import Line, ScriptedEngine
from tests.tracing.hosting import one, scope_of
from tests.tracing.replaying import EVENTS, Answer, Arrived, event, replaying

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
INPUT = {"type": "input_json_delta"}
END = {"stop_reason": "tool_use", "stop_sequence": None}
CONTENT = [{"type": "text", "text": "let me"}, USE]
WHOLE = Answer((json.dumps({**HEAD, "content": CONTENT, **END, "usage": USAGE}).encode(),))
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
                    {"type": "content_block_delta", "index": 1, "delta": {**INPUT, "partial_json": part}}
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


@pytest.mark.parametrize("way", WAYS)
def test_an_untrained_agents_call_is_left_as_it_was_and_seen(way: Callable[[Any], None]) -> None:
    answer = STREAMED if "stream" in way.__name__ else WHOLE
    with (
        replaying(answer) as server,
        anthropic.Anthropic(api_key="sk-ant-mine", base_url=server.url) as client,
    ):
        way(client)
        with rollout_scope(scope_of()) as scope, agent("checker"):
            way(client)
    outside, inside = server.arrived
    call = one(scope)
    assert _untraced(inside) == _untraced(outside)
    assert (call.dialect, call.agent, call.status, call.trained) == (
        "anthropic",
        "checker",
        "completed",
        False,
    )
    assert (call.response_id, call.endpoint) == ("msg_1", f"{server.url}/v1")
    assert (call.choices[0].finish_reason, call.choices[0].message["content"]) == ("tool_calls", "let me")
    [tool] = call.choices[0].message["tool_calls"]  # type: ignore[misc]
    assert isinstance(tool, dict)
    assert tool["id"] == "toolu_1"
    assert json.loads(tool["function"]["arguments"]) == {"at": 1}  # type: ignore[index,call-overload,arg-type]
    assert "sk-ant-mine" not in repr(call)


def _untraced(arrived: Arrived) -> Arrived:
    """Without the header by which the SDK continues its own trace, where something made a tracer provider."""
    return replace(arrived, headers=[each for each in arrived.headers if each[0] != b"traceparent"])


async def by_async_stream(base_url: str) -> None:
    opener = anthropic.AsyncAnthropic(api_key="sk-ant-mine", base_url=base_url)
    async with opener, opener.messages.stream(**ASKED, tools=[TOOL]) as stream:
        assert (await stream.get_final_message()).content[1].input == {"at": 1}


async def test_an_async_stream_is_seen() -> None:
    with replaying(STREAMED) as server, rollout_scope(scope_of()) as scope, agent("checker"):
        await by_async_stream(server.url)
    assert (one(scope).status, one(scope).choices[0].message["content"]) == ("completed", "let me")


def test_an_error_within_a_stream_is_seen() -> None:
    broken = event({"type": "error", "error": {"type": "overloaded_error", "message": "too busy"}})
    with replaying(Answer((*STREAMED.content[:4], broken), EVENTS)) as server:
        client = anthropic.Anthropic(api_key="sk-ant-mine", base_url=server.url)
        with client, rollout_scope(scope_of()) as scope, agent("checker"), pytest.raises(anthropic.APIError):
            by_stream(client)
    assert (one(scope).status, one(scope).error) == ("failed", "too busy")
    assert one(scope).choices[0].message["content"] == "let "


async def test_a_trained_agents_calls_are_recorded_by_the_gateway_whatever_endpoint_its_client_names() -> (
    None
):
    looks = [{"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}]
    engine = ScriptedEngine(says=lambda request, choice: Line("let me", looks))
    async with open_house(engine, agents=("writer",)) as house:
        scope = Scope("r1", 1, house.url, await house.rollout(), ("writer",))
        with replaying(WHOLE) as hosted, rollout_scope(scope), agent("writer"):
            with anthropic.Anthropic(api_key="sk-ant-mine", base_url=hosted.url) as client:
                for way in WAYS:
                    way(client)
            await by_async_stream(hosted.url)
        calls = await house.calls()
    assert hosted.arrived == []
    noticed, events = scope.noticed()
    assert (noticed, list(filter(None, map(read_unseen, events)))) == ([], [])
    assert len({call.id for call in calls}) == len(calls) == len(WAYS) + 1
    assert {(call.agent, call.trained, call.dialect, call.endpoint) for call in calls} == {
        ("writer", True, "anthropic", None)
    }
    assert all(call.prompt_ids and call.choices[0].completion_ids for call in calls)


@pytest.mark.parametrize("options", [{"api_key": "sk-ant-mine"}, {"auth_token": "sk-ant-mine"}])
def test_a_routed_request_bears_the_rollouts_token_and_no_key_of_the_apps(
    gateway: GatewayDouble, options: dict[str, str]
) -> None:
    with anthropic.DefaultHttpxClient(auth=("user", "secret")) as http:
        client = anthropic.Anthropic(**options, http_client=http)
        with rollout_scope(Scope("r1", 1, gateway.url, "token", None)), agent("writer"):
            client.messages.create(**ASKED)
    [seen] = gateway.seen
    assert (seen.path, seen.headers["x-api-key"]) == ("/v1/messages", "token")
    assert "authorization" not in seen.headers
    assert "sk-ant-mine" not in repr(seen.headers)
    assert (seen.tagged().rollout, seen.tagged().agent) == ("r1", "writer")
    assert seen.tagged().call


def test_an_untrained_agent_without_an_endpoint_is_served_by_the_policy(gateway: GatewayDouble) -> None:
    scope = Scope("r1", 1, gateway.url, "token", ("writer",))
    with anthropic.Anthropic(api_key="none") as client, rollout_scope(scope), agent("checker"):
        client.messages.create(**ASKED)
    assert [seen.tagged().agent for seen in gateway.seen] == ["checker"]


def test_an_untrained_agent_with_a_key_keeps_anthropic_as_its_endpoint() -> None:
    options = anthropic._models.FinalRequestOptions.construct(
        method="post", url="/v1/messages", json_data={}, idempotency_key="stainless-python-retry-1"
    )
    with anthropic.Anthropic(api_key="sk-ant-mine") as client, rollout_scope(scope_of()) as scope:
        request = client._build_request(options)
    assert request.url == "https://api.anthropic.com/v1/messages"
    assert (one(scope).id, one(scope).endpoint) == ("1", "https://api.anthropic.com/v1")


def test_what_the_policy_cannot_answer_goes_where_the_app_sends_it() -> None:
    with replaying(Answer((b'{"input_tokens": 3}',))) as server:
        client = anthropic.Anthropic(api_key="sk-ant-mine", base_url=server.url)
        with client, rollout_scope(Scope("r1", 1, "http://127.0.0.1:1", "token", None)) as scope:
            assert client.messages.count_tokens(model="m", messages=ASKED["messages"]).input_tokens == 3
    assert [arrived.path for arrived in server.arrived] == ["/v1/messages/count_tokens"]
    noticed, events = scope.noticed()
    assert (noticed, list(filter(None, map(read_unseen, events)))) == ([], [])
