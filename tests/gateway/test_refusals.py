"""Unusable requests are refused by name, in the form that OpenAI's clients understand."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import orjson
import pytest

from lightning_core.dialects.chat import Chat
from lightning_core.errors import ApiError
from tests.gateway.conftest import House, open_house
from tests.gateway.scripted import ScriptedEngine

HI: list[Any] = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "look"}}

TOO_LONG = (
    "This model's maximum context length is 2 tokens. However, your messages resulted in 3 tokens; shorten it"
)


def with_part(part: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [*HI, {"role": "user", "content": [{"type": "text", "text": "see"}, part]}]}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "grammar"}}, "response_format"),
        ({"response_format": "json"}, "response_format"),
        ({"audio": {"voice": "alloy", "format": "wav"}}, "audio"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"functions": [{"name": "look"}]}, "functions"),
        ({"function_call": "auto"}, "function_call"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"length_penalty": 0.8}, "length_penalty"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"best_of": 3}, "best_of"),
        ({"echo": True}, "echo"),
        ({"min_tokens": 5}, "min_tokens"),
        ({"ignore_eos": True}, "ignore_eos"),
        ({"stop_token_ids": [7]}, "stop_token_ids"),
        ({"bad_words": ["no"]}, "bad_words"),
        ({"skip_special_tokens": False}, "skip_special_tokens"),
        ({"tools": [TOOL], "tool_choice": "look"}, "tool_choice"),
        (with_part({"type": "image_url", "image_url": {"url": "data:"}}), "messages[1].content[1]"),
        (with_part({"type": "input_audio"}), "messages[1].content[1]"),
        ({"messages": [{"role": "function", "name": "f", "content": "x"}]}, "messages[0].role"),
        (
            {"messages": [*HI, {"role": "assistant", "function_call": {"name": "f"}}]},
            "messages[1].function_call",
        ),
    ],
)
def test_an_option_that_no_engine_here_honours_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    refusal = refused(fields)
    assert (refusal.status, refusal.code, refusal.param) == (400, "unsupported_value", param)
    assert param in str(refusal) or "'function'" in str(refusal)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 2.5}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": 0}, "n"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 1.5}, "min_p"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"logit_bias": {"the": 1}}, "logit_bias"),
        ({"logit_bias": {str(n): 1 for n in range(2000)}}, "logit_bias"),
        ({"thinking": {"type": "enabled"}, "enable_thinking": False}, "thinking"),
        ({"reasoning": {"effort": "high"}, "reasoning_effort": "none", "enable_thinking": True}, "thinking"),
        ({"response_format": {"type": "json_object", "schema": 5}}, "response_format.schema"),
        ({"n": 129}, "n"),
        ({"n": True}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"stop": [1]}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"seed": 1.5}, "seed"),
        ({"model": 5}, "model"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
        ({"tools": [TOOL], "parallel_tool_calls": "no"}, "parallel_tool_calls"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": 5}}},
            "response_format.json_schema.schema",
        ),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json"),
        ({"structured_outputs": {"regex": 5}}, "structured_outputs.regex"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": {"choice": ["a", 1]}}, "structured_outputs.choice"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs.choice"),
        ({"tools": "look"}, "tools"),
        ({"messages": []}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0]"),
    ],
)
def test_a_value_that_the_api_does_not_allow_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    refusal = refused(fields)
    assert (refusal.status, refusal.code, refusal.param) == (400, "invalid_value", param)
    assert param.partition("[")[0] in str(refusal)


def test_an_unknown_parameter_and_a_nameless_tool_are_refused() -> None:
    assert refused({"hue": 3}).code == "unknown_parameter"
    assert refused({"thinking": {"hue": 3}}).param == "thinking.hue"
    assert "give structured_outputs" in str(refused({"guided_json": {}}))
    assert refused({"tools": [{"type": "function", "function": {}}]}).code == "missing_required_parameter"


async def test_a_refusal_reaches_the_app_as_its_sdks_exception(house: House) -> None:
    with pytest.raises(openai.BadRequestError, match="echo") as caught:
        await create(house, {"echo": True})
    assert caught.value.code == "unsupported_value"
    assert caught.value.param == "echo"
    assert caught.value.type == "invalid_request_error"
    assert not house.engine.requests
    call = await house.one_call()
    assert (call.status, call.agent, call.request["echo"]) == ("refused", "unnamed", True)
    assert call.error == caught.value.body["message"]  # type: ignore[index]


async def test_options_that_ask_for_nothing_are_accepted(house: House) -> None:
    await create(
        house,
        {
            "user": "u",
            "metadata": {"a": "b"},
            "store": True,
            "service_tier": "auto",
            "parallel_tool_calls": True,
            "prompt_cache_key": "k",
            "safety_identifier": "s",
            "response_format": {"type": "text"},
            "frequency_penalty": 0.0,
            "presence_penalty": 0,
            "logit_bias": {},
            "modalities": ["text"],
            "audio": None,
            "reasoning_effort": None,
            "verbosity": "low",
            "prompt_cache_retention": "24h",
            "best_of": 1,
            "stream_usage": True,
            "skip_special_tokens": True,
            "include_reasoning": True,
            "stop_token_ids": [],
            "min_tokens": 0,
            "ignore_eos": False,
            "bad_words": [],
            "priority": 0,
            "cache_salt": "c",
            "request_id": "q",
            "session_id": "s",
            "length_penalty": 1.0,
            "echo": False,
            "transforms": ["middle-out"],
            "top_k": -1,
            "min_p": 0,
            "repetition_penalty": 1.0,
            "tools": [],
            "tool_choice": "auto",
            "stop": None,
            "temperature": None,
        },
    )
    assert len(house.engine.requests) == 1


async def test_a_prompt_longer_than_the_context_is_the_apps_error_and_is_recorded() -> None:
    long = [{"role": "user", "content": "one two three"}]
    async with open_house(ScriptedEngine(context=2)) as house:
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError) as caught:
                await create(house, {"messages": long, "stream": stream})
            assert caught.value.code == "context_length_exceeded"
            assert caught.value.param == "messages"
            call = (await house.calls())[-1]
            assert call.status == "refused"
            assert call.error == TOO_LONG
            assert TOO_LONG in str(caught.value)
            assert call.prompt_ids is None
        assert house.engine.opened == 0


async def test_a_body_that_is_no_json_object_is_refused(house: House, web: httpx.AsyncClient) -> None:
    headers = {"authorization": f"Bearer {await house.rollout()}"}
    for content in (b"", b"{", b"[]", b"\xff", b'"\\ud83d"'):
        reply = await web.post("/v1/chat/completions", content=content, headers=headers)
        assert reply.status_code == 400
        assert reply.json()["error"]["code"] == "invalid_json"
    assert [(call.status, call.request) for call in await house.calls()] == [("refused", {})] * 5


async def test_a_refusal_without_a_rollout_is_not_recorded() -> None:
    async with open_house(anonymous=True) as house, httpx.AsyncClient(base_url=house.url) as web:
        assert (
            await web.post("/v1/chat/completions", json={"messages": HI, "top_k": "x"})
        ).status_code == 400
        assert await house.store.get_calls([]) == {}


async def test_what_is_not_served_says_so(house: House, web: httpx.AsyncClient) -> None:
    client = house.client(await house.rollout())
    with pytest.raises(openai.NotFoundError, match="/v1/moderations is not served here") as caught:
        await client.moderations.create(model="m", input="hi")
    assert caught.value.code == "unknown_endpoint"
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/models"):
        assert path in str(caught.value)
    reply = await web.get("/v1/chat/completions")
    assert reply.status_code == 405
    assert reply.json()["error"]["code"] == "method_not_allowed"
    assert (await web.get("/nothing")).json()["error"]["type"] == "invalid_request_error"


async def test_embeddings_are_refused_with_the_reason(house: House, web: httpx.AsyncClient) -> None:
    client = house.client(await house.rollout(), base="/rollouts/r1/agents/a/v1")
    with pytest.raises(openai.NotFoundError, match="writes text; send embeddings, audio and") as caught:
        await client.embeddings.create(model="m", input="hi")
    assert caught.value.code == "unsupported_endpoint"
    assert (await web.post("/v1/embeddings")).status_code == 401


@pytest.mark.parametrize("path", ["/audio/speech", "/audio/transcriptions", "/images/generations"])
async def test_audio_and_images_are_refused_with_the_reason(
    house: House, web: httpx.AsyncClient, path: str
) -> None:
    headers = {"authorization": f"Bearer {await house.rollout()}"}
    for base in ("/v1", "/rollouts/r1/agents/a/v1"):
        reply = await web.post(base + path, json={"model": "m"}, headers=headers)
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, "unsupported_endpoint")
        assert "writes text; send embeddings, audio and images with" in reply.json()["error"]["message"]
    assert (await web.post("/v1" + path)).status_code == 401


def refused(fields: dict[str, Any]) -> ApiError:
    """The refusal of a chat completion with these fields."""
    with pytest.raises(ApiError) as caught:
        Chat().read(orjson.dumps({"model": "m", "messages": HI, **fields}), None, (None, None))
    return caught.value


async def create(house: House, fields: dict[str, Any]) -> None:
    """Post a chat completion with these fields, as rollout r1."""
    token = await house.rollout() if not house.openers else house.openers[0].api_key
    await house.client(token).post(
        "/chat/completions",
        body={"model": "m", "messages": HI, **fields},
        cast_to=object,
        stream=fields.get("stream") is True,
        stream_cls=openai.AsyncStream[object],
    )
