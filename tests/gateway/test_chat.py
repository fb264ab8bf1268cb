"""A chat completion through the gateway: what the app gets, and what is recorded."""

from __future__ import annotations

import asyncio
import threading
from typing import Any
from urllib.parse import quote

import httpx
import openai
import orjson
import pytest

from lightning_core.dialects.upstream import ChatRequest, Constraint
from lightning_core.records.types import UNNAMED, Sampling
from tests.gateway.conftest import House, open_house
from tests.gateway.scripted import END, Line, ScriptedEngine, logprob, until

HELLO: list[Any] = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hello there you"}]
TOOLS: list[Any] = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
LOOK = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at":"x"}'}}


async def test_the_reply_is_the_engines_and_is_recorded_with_its_exact_ids(house: House) -> None:
    client = house.client(await house.rollout(), agent="writer")
    reply = await client.chat.completions.create(model="gpt-x", messages=HELLO)

    assert reply.choices[0].message.content == "hello there you"
    assert reply.choices[0].finish_reason == "stop"
    assert reply.model == "gpt-x"
    call = await house.one_call()
    said = [*house.engine.encode("hello there you"), END]
    assert call.prompt_ids == house.engine.encode("be kind hello there you")
    assert call.choices[0].completion_ids == said
    assert call.choices[0].logprobs == [logprob(token) for token in said]
    assert call.choices[0].message == {"role": "assistant", "content": "hello there you"}
    assert (call.agent, call.attempt, call.status, call.model) == ("writer", 1, "completed", "gpt-x")
    assert (call.policy_version, call.trained, call.dialect) == (7, True, "chat")
    assert call.request["messages"] == HELLO
    assert call.started_at <= call.ended_at
    assert reply.usage is not None
    assert reply.usage.prompt_tokens == 5
    assert reply.usage.completion_tokens == 4
    assert reply.usage.total_tokens == 9


async def test_a_recorded_call_is_valid_though_it_was_built_without_validation(house: House) -> None:
    client = house.client(await house.rollout())
    await client.chat.completions.create(model="m", messages=HELLO, n=2)
    call = await house.one_call()
    assert type(call).model_validate(call.model_dump()) == call


async def test_the_path_names_rollout_and_agent_like_the_headers_do(house: House) -> None:
    token = await house.rollout()
    for name in ("writer", "Prüfer/zwei 试", "50% off", "a/v1/b"):
        base = f"/rollouts/r1/agents/{quote(name, safe='')}/v1"
        client = house.client(token, base=base)
        await client.chat.completions.create(model="m", messages=HELLO)
        assert (await house.calls())[-1].agent == name


async def test_an_agent_name_of_any_script_survives_the_header(house: House) -> None:
    for name in ("редактор", "a b/c%d", "🦊"):
        client = house.client(await house.rollout(f"r-{name}"), agent=quote(name, safe=""))
        await client.chat.completions.create(model="m", messages=HELLO)
        assert (await house.one_call(f"r-{name}")).agent == name


async def test_the_header_speaks_for_one_call_and_beats_the_path(house: House) -> None:
    client = house.client(await house.rollout(), base="/rollouts/r1/agents/program/v1", agent="inner")
    await client.chat.completions.create(model="m", messages=HELLO)
    assert (await house.one_call()).agent == "inner"


async def test_a_call_that_nobody_claims_is_unnamed(house: House) -> None:
    client = house.client(await house.rollout())
    await client.chat.completions.create(model="m", messages=HELLO)
    assert (await house.one_call()).agent == UNNAMED


async def test_identical_prompts_are_as_many_calls_as_were_answered(house: House) -> None:
    client = house.client(await house.rollout())
    for call_id in ("a", "a", "b", None):
        headers = {"x-lightning-call": call_id} if call_id else {}
        await client.chat.completions.create(model="m", messages=HELLO, extra_headers=headers)
    ids = [call.id for call in await house.calls()]
    assert len(set(ids)) == 4
    assert {"a", "b"} < {*ids}


async def test_only_trained_agents_sample_as_the_rollout_says() -> None:
    async with open_house(agents=("write*",)) as house:
        token = await house.rollout(sampling=Sampling(temperature=0.0, top_p=0.5))
        for agent in ("writer", "judge"):
            client = house.client(token, agent=agent)
            await client.chat.completions.create(
                model="m", messages=HELLO, temperature=0.7, top_p=0.9, seed=42
            )
        first, second = house.engine.requests
        assert (first.temperature, first.top_p, first.seed) == (0.0, 0.5, None)
        assert (second.temperature, second.top_p, second.seed) == (0.7, 0.9, 42)
        writer, judge = await house.calls()
        assert (writer.agent, writer.trained, writer.temperature) == ("writer", True, 0.0)
        assert (judge.agent, judge.trained, judge.temperature) == ("judge", False, 0.7)


async def test_several_choices_are_recorded_apart(house: House) -> None:
    client = house.client(await house.rollout())
    reply = await client.chat.completions.create(model="m", messages=HELLO, n=3)
    said = ["hello there you", "hello there you 1", "hello there you 2"]
    assert [choice.message.content for choice in reply.choices] == said
    assert [choice.index for choice in reply.choices] == [0, 1, 2]
    call = await house.one_call()
    assert [choice.completion_ids for choice in call.choices] == [
        [*house.engine.encode(text), END] for text in said
    ]


async def test_tools_go_to_the_engine_and_tool_calls_come_back() -> None:
    engine = ScriptedEngine(says=lambda request, choice: Line(tool_calls=[LOOK]))
    async with open_house(engine) as house:
        client = house.client(await house.rollout())
        reply = await client.chat.completions.create(
            model="m", messages=HELLO, tools=TOOLS, tool_choice="auto", parallel_tool_calls=False
        )
        calls = reply.choices[0].message.tool_calls
        assert calls is not None
        assert calls[0].model_dump() == LOOK
        assert reply.choices[0].message.content is None
        assert reply.choices[0].finish_reason == "tool_calls"
        assert engine.requests[0].tools == TOOLS
        assert (await house.one_call()).choices[0].message["tool_calls"] == [LOOK]


@pytest.mark.parametrize(
    ("choice", "reason"),
    [({"type": "function", "function": {"name": "look"}}, "stop"), ("required", "tool_calls")],
)
async def test_the_finish_reason_of_a_forced_call_is_openais(choice: Any, reason: str) -> None:
    engine = ScriptedEngine(says=lambda request, choice: Line(tool_calls=[LOOK]))
    async with open_house(engine) as house:
        client = house.client(await house.rollout())
        asked: dict[str, Any] = {"messages": HELLO, "tools": TOOLS, "tool_choice": choice}
        whole = await client.chat.completions.create(model="m", **asked)
        assert whole.choices[0].finish_reason == reason
        stream = await client.chat.completions.create(model="m", stream=True, **asked)
        chunks = [chunk async for chunk in stream]
        assert chunks[-1].choices[0].finish_reason == reason
        assert [call.choices[0].finish_reason for call in await house.calls()] == ["tool_calls"] * 2


async def test_without_constrain_the_prompt_asks_for_the_form() -> None:
    schema = {"type": "object", "required": ["city"]}
    form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    async with open_house(agents=("write*",)) as house:
        token = await house.rollout(sampling=Sampling(constrain=False))
        asked: list[tuple[str, list[Any]]] = [
            ("writer", HELLO[1:]),
            ("writer", HELLO),
            ("judge", HELLO),
        ]
        for agent, messages in asked:
            client = house.client(token, agent=agent)
            await client.chat.completions.create(model="m", messages=messages, response_format=form)
        await house.client(token, agent="writer").chat.completions.create(
            model="m", messages=HELLO, tools=TOOLS, tool_choice="required"
        )
        alone, beside, judge, forced = house.engine.requests
        words = f"Answer with JSON alone, valid for this JSON Schema: {orjson.dumps(schema).decode()}"
        assert alone.messages == [{"role": "system", "content": words}, *HELLO[1:]]
        assert beside.messages[0]["content"] == f"be kind\n\n{words}"
        assert forced.messages[0]["content"] == "be kind\n\nAnswer with a call of a function: look."
        assert [each.constraint for each in (alone, beside, forced)] == [None] * 3
        assert judge.constraint == Constraint(schema=schema)
        assert judge.messages == HELLO
        assert [call.request.get("response_format") for call in (await house.calls())[:1]] == [form]


async def test_half_a_surrogate_pair_in_a_tools_arguments_is_passed_on_escaped() -> None:
    torn = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at":"\ud83d"}'}}
    engine = ScriptedEngine(says=lambda request, choice: Line(tool_calls=[torn]))
    async with open_house(engine) as house, httpx.AsyncClient(base_url=house.url) as web:
        headers = {"authorization": f"Bearer {await house.rollout()}"}
        for stream in (False, True):
            body = {"messages": HELLO, "tools": TOOLS, "stream": stream}
            reply = await web.post("/v1/chat/completions", json=body, headers=headers)
            assert reply.status_code == 200
            assert "\\ud83d" in reply.text


async def test_a_model_that_must_not_call_tools_is_not_told_of_any(house: House) -> None:
    client = house.client(await house.rollout())
    await client.chat.completions.create(model="m", messages=HELLO, tools=TOOLS, tool_choice="none")
    assert house.engine.requests[0].tools is None


async def test_logprobs_come_in_openais_form(house: House) -> None:
    client = house.client(await house.rollout())
    reply = await client.chat.completions.create(model="m", messages=HELLO, logprobs=True, top_logprobs=2)
    logprobs = reply.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert [entry.token for entry in logprobs.content] == ["hello", "there", "you", "<end>"]
    token = house.engine.encode("hello")[0]
    first = logprobs.content[0]
    assert first.logprob == logprob(token)
    assert first.bytes == list(b"hello")
    assert [(top.token, top.logprob) for top in first.top_logprobs] == [
        ("hello", logprob(token)),
        ("<end>", -9),
    ]


async def test_half_a_character_has_no_bytes(house: House) -> None:
    client = house.client(await house.rollout())
    messages: Any = [{"role": "user", "content": "half\ufffd"}]
    reply = await client.chat.completions.create(model="m", messages=messages, logprobs=True)
    logprobs = reply.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert logprobs.content[0].bytes is None
    assert logprobs.content[0].top_logprobs == []


async def test_token_ids_are_given_to_who_asks(house: House) -> None:
    client = house.client(await house.rollout())
    reply = await client.chat.completions.create(
        model="m", messages=HELLO, extra_body={"return_token_ids": True}
    )
    call = await house.one_call()
    assert reply.model_extra is not None
    assert reply.model_extra["prompt_token_ids"] == call.prompt_ids
    assert reply.choices[0].model_extra is not None
    assert reply.choices[0].model_extra["token_ids"] == call.choices[0].completion_ids


async def test_every_served_parameter_reaches_the_engine(house: House) -> None:
    client = house.client(await house.rollout())
    await client.chat.completions.create(
        model="m",
        messages=HELLO,
        max_completion_tokens=2,
        max_tokens=9,
        stop=["\n", "END"],
        extra_body={"chat_template_kwargs": {"enable_thinking": False}},
    )
    assert house.engine.requests[0] == ChatRequest(
        attempt=("r1", 1),
        messages=HELLO,
        max_tokens=2,
        stop=("\n", "END"),
        temperature=1.0,
        extra={"enable_thinking": False},
        trained=True,
        whole=True,
    )
    assert (await house.one_call()).choices[0].finish_reason == "length"


async def test_parts_of_text_are_joined_and_developers_are_the_system(house: House) -> None:
    client = house.client(await house.rollout())
    parts: Any = [
        {"role": "developer", "content": [{"type": "text", "text": "be"}, {"type": "text", "text": "kind"}]},
        {"role": "assistant", "content": None, "tool_calls": [LOOK]},
        {"role": "tool", "content": "seen", "tool_call_id": "c1"},
    ]
    await client.chat.completions.create(model="m", messages=parts)
    assert house.engine.requests[0].messages == [
        {"role": "system", "content": "be\nkind"},
        {"role": "assistant", "content": None, "tool_calls": [LOOK]},
        {"role": "tool", "content": "seen", "tool_call_id": "c1"},
    ]
    assert (await house.one_call()).request["messages"] == parts


async def test_a_refusal_in_the_history_is_what_the_assistant_said(house: House) -> None:
    client = house.client(await house.rollout())
    refused: Any = {"role": "assistant", "content": None, "refusal": "I can't do that."}
    await client.chat.completions.create(model="m", messages=[*HELLO, refused, HELLO[1]])
    assert house.engine.requests[0].messages[2]["content"] == "I can't do that."


async def test_a_model_is_known_by_the_name_it_was_started_with_too() -> None:
    async with open_house(also_named="smollm2") as house:
        client = house.client(await house.rollout())
        assert [model.id for model in (await client.models.list()).data] == ["scripted", "smollm2"]
        assert (await client.models.retrieve("smollm2")).id == "smollm2"
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("another")


async def test_models_and_health_are_served(house: House, web: httpx.AsyncClient) -> None:
    token = await house.rollout()
    for base in ("/v1", "/rollouts/r1/agents/a/v1"):
        models = await house.client(token, base=base).models.list()
        assert [model.id for model in models.data] == ["scripted"]
    health = (await web.get("/healthz")).json()
    assert health.pop("instance"), "which of the processes that listened there"
    assert health == {"status": "ok", "model": "scripted", "calls": 0, "begun": 0}
    await house.client(token).chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
    counts = (await web.get("/healthz")).json()
    assert (counts["calls"], counts["begun"]) == (0, 1)
    assert (await web.get("/v1/models")).status_code == 401


async def test_a_model_is_found_by_its_name() -> None:
    engine = ScriptedEngine(model_name="some/model")
    async with open_house(engine) as house, httpx.AsyncClient(base_url=house.url) as web:
        token = await house.rollout()
        for base in ("/v1", "/rollouts/r1/agents/a/v1"):
            client = house.client(token, base=base)
            [model] = (await client.models.list()).data
            assert await client.models.retrieve("some/model") == model
            with pytest.raises(openai.NotFoundError, match="no model 'gpt-x' here") as caught:
                await client.models.retrieve("gpt-x")
            assert caught.value.code == "model_not_found"
        assert (await web.get("/v1/models/some/model")).status_code == 401


async def test_a_request_is_held_while_weights_change_and_answered_by_the_new_ones(house: House) -> None:
    house.engine.held = threading.Event()
    client = house.client(await house.rollout())
    asked = asyncio.create_task(client.chat.completions.create(model="m", messages=HELLO))
    await until(lambda: house.engine.requests)
    house.engine.policy_version = 8
    house.engine.held.set()
    await asked
    assert (await house.one_call()).policy_version == 8


async def test_the_assistants_last_words_are_continued_if_the_app_asks(house: House) -> None:
    client = house.client(await house.rollout())
    begun: Any = [*HELLO[-1:], {"role": "assistant", "content": "It is"}]
    asked: dict[str, Any] = {"continue_final_message": True, "add_generation_prompt": False}
    await client.chat.completions.create(model="m", messages=begun, extra_body=asked)
    await client.chat.completions.create(model="m", messages=[begun[0], {**begun[1], "prefix": True}])
    await client.chat.completions.create(model="m", messages=begun)
    assert [request.continues for request in house.engine.requests] == [True, True, False]
    assert {tuple(map(str, request.messages)) for request in house.engine.requests} == {
        tuple(map(str, begun))
    }


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([{"role": "user", "content": "hi"}], "is not the assistant's, so there is nothing to continue"),
        (
            [{"role": "assistant", "content": None, "tool_calls": [LOOK]}],
            "must hold text and no call of a tool",
        ),
    ],
)
async def test_what_can_not_be_continued_is_refused(house: House, messages: Any, said: str) -> None:
    client = house.client(await house.rollout())
    with pytest.raises(openai.BadRequestError, match=said):
        await client.chat.completions.create(
            model="m", messages=messages, extra_body={"continue_final_message": True}
        )
