"""Raw completions through the gateway, as the OpenAI SDK reads them."""

from __future__ import annotations

from typing import Any

import openai
import orjson
import pytest
from openai.types import Completion

from lightning_core.dialects.completions import Completions
from lightning_core.dialects.upstream import ChatRequest
from lightning_core.errors import ApiError
from tests.gateway.conftest import House, drain, open_house
from tests.gateway.scripted import END, Line, ScriptedEngine, logprob, until


async def test_every_served_parameter_reaches_the_engine() -> None:
    async with open_house(agents=("another",)) as house:
        client = house.client(await house.rollout())
        reply = await client.completions.create(
            model="gpt-x",
            prompt="once upon a time",
            n=2,
            best_of=2,
            max_tokens=3,
            temperature=0.5,
            top_p=0.9,
            stop="\n",
            seed=3,
            logprobs=1,
        )
        assert house.engine.requests[0] == ChatRequest(
            attempt=("r1", 1),
            messages=[],
            prompt="once upon a time",
            n=2,
            max_tokens=3,
            temperature=0.5,
            top_p=0.9,
            stop=("\n",),
            seed=3,
            top_logprobs=1,
            whole=True,
        )
        call = await house.one_call()
        assert call.prompt_ids == house.engine.encode("once upon a time")
        assert [choice.text for choice in reply.choices] == ["once upon a", "once upon a"]
        assert [choice.finish_reason for choice in reply.choices] == ["length", "length"]
        assert (reply.id, reply.object, reply.model) == (f"cmpl-{call.id}", "text_completion", "gpt-x")
        assert reply.usage is not None
        assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (4, 6)


async def test_a_prompt_of_token_ids_reaches_the_engine_untouched() -> None:
    async with open_house(ScriptedEngine(says=lambda request, choice: Line("ok"))) as house:
        client = house.client(await house.rollout())
        for prompt in ([3, 1, 2], [[3, 1, 2]]):
            await client.completions.create(model="m", prompt=prompt)
        assert [call.prompt_ids for call in await house.calls()] == [[3, 1, 2], [3, 1, 2]]
        assert house.engine.requests[0].max_tokens == 16


async def test_logprobs_come_in_the_form_of_completions(house: House) -> None:
    client = house.client(await house.rollout())
    whole = await client.completions.create(model="m", prompt="a bc d", logprobs=1)
    stream = await client.completions.create(model="m", prompt="a bc d", logprobs=1, stream=True)
    chunks: list[Completion] = []
    await drain(stream, chunks)
    said = [*house.engine.encode("a bc d"), END]
    logprobs = whole.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == ["a", "bc", "d", "<end>"]
    assert logprobs.token_logprobs == [logprob(token) for token in said]
    assert logprobs.text_offset == [0, 1, 3, 4]
    assert logprobs.top_logprobs is not None
    assert logprobs.top_logprobs[0] == {"a": logprob(said[0]), "<end>": -9.0}
    parts = [chunk.choices[0].logprobs for chunk in chunks if chunk.choices[0].logprobs]
    assert [token for part in parts for token in part.tokens or []] == logprobs.tokens
    assert [offset for part in parts for offset in part.text_offset or []] == logprobs.text_offset


async def test_of_two_tokens_with_one_text_the_more_probable_is_told(house: House) -> None:
    client = house.client(await house.rollout())
    reply = await client.completions.create(model="m", prompt="a", logprobs=2)
    logprobs = reply.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.top_logprobs is not None
    assert logprobs.top_logprobs[-1] == {"<end>": logprob(END)}


async def test_chunks_come_in_openais_order(house: House) -> None:
    client = house.client(await house.rollout())
    stream = await client.completions.create(
        model="m",
        prompt="one two three",
        n=2,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"return_token_ids": True},
    )
    chunks: list[Completion] = []
    await drain(stream, chunks)
    *pieces, usage = chunks
    texts = ["", ""]
    ids: list[list[int]] = [[], []]
    for chunk in pieces:
        choice = chunk.choices[0]
        texts[choice.index] += choice.text
        ids[choice.index] += (choice.model_extra or {})["token_ids"]
    assert texts == ["one two three", "one two three 1"]
    assert ids == [choice.completion_ids for choice in (await house.one_call()).choices]
    assert [chunk.choices[0].finish_reason for chunk in pieces[-2:]] == ["stop", "stop"]
    assert {chunk.choices[0].finish_reason for chunk in pieces[:-2]} == {None}
    assert usage.choices == []
    assert usage.usage is not None
    assert usage.usage.total_tokens == 3 + 4 + 5


async def test_an_engine_that_fails_midway_ends_the_stream_with_the_error() -> None:
    async with open_house(ScriptedEngine(fails_after=2, delay=0.01)) as house:
        client = house.client(await house.rollout())
        stream = await client.completions.create(model="m", prompt="one two three", stream=True)
        chunks: list[Completion] = []
        with pytest.raises(openai.APIError, match="out of memory"):
            await drain(stream, chunks)
        assert "".join(chunk.choices[0].text for chunk in chunks) == "one two"


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"prompt": ["a", "b"]}, "prompt", "unsupported_value"),
        ({"prompt": [[1], [2]]}, "prompt", "unsupported_value"),
        ({"echo": True}, "echo", "unsupported_value"),
        ({"best_of": 2}, "best_of", "unsupported_value"),
        ({"n": 2, "best_of": 3}, "best_of", "unsupported_value"),
        ({"suffix": "x"}, "suffix", "unsupported_value"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "invalid_value"),
        ({"prompt": ""}, "prompt", "invalid_value"),
        ({"prompt": []}, "prompt", "invalid_value"),
        ({"prompt": None}, "prompt", "invalid_value"),
        ({"prompt": [1, "a"]}, "prompt", "invalid_value"),
        ({"prompt": [True]}, "prompt", "invalid_value"),
        ({"prompt": {"a": 1}}, "prompt", "invalid_value"),
        ({"logprobs": 6}, "logprobs", "invalid_value"),
        ({"logprobs": True}, "logprobs", "invalid_value"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"messages": []}, "messages", "unknown_parameter"),
    ],
)
def test_what_can_not_be_honoured_is_refused_by_name(fields: dict[str, Any], param: str, code: str) -> None:
    dialect = Completions()
    with pytest.raises(ApiError, match=param) as caught:
        dialect.read(orjson.dumps({"model": "m", "prompt": "hi", **fields}), None, ("r1", 1))
    assert (caught.value.status, caught.value.param, caught.value.code) == (400, param, code)


async def test_several_prompts_are_several_calls_and_one_reply(house: House) -> None:
    client = house.client(await house.rollout(), agent="writer")
    prompts = ["once upon", "a time", "the end of it"]
    asked: dict[str, Any] = {
        "model": "m",
        "prompt": prompts,
        "n": 2,
        "extra_headers": {"x-lightning-call": "k"},
    }
    for _ in range(2):  # sent again, it is the same calls
        reply = await client.completions.create(**asked)
    said = [f"{prompt}{more}" for prompt in prompts for more in ("", " 1")]
    assert [choice.text for choice in reply.choices] == said
    assert [choice.index for choice in reply.choices] == [0, 1, 2, 3, 4, 5]
    assert reply.usage is not None
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (2 + 2 + 4, 3 + 4 + 3 + 4 + 5 + 6)
    calls = [call for call in await house.calls() if "." not in call.id]
    assert [call.id for call in calls] == ["k-0", "k-1", "k-2"]
    assert [call.request["prompt"] for call in calls] == prompts
    assert [call.prompt_ids for call in calls] == [house.engine.encode(prompt) for prompt in prompts]
    assert {call.agent for call in calls} == {"writer"}


async def test_prompts_of_token_ids_may_be_several_too(house: House) -> None:
    client = house.client(await house.rollout())
    ids = [house.engine.encode("one two"), house.engine.encode("three")]
    await client.completions.create(model="m", prompt=ids)
    assert [call.prompt_ids for call in await house.calls()] == ids


async def test_of_several_prompts_one_that_fails_is_the_replys_error() -> None:
    async with open_house(ScriptedEngine(context=2)) as house:
        client = house.client(await house.rollout())
        with pytest.raises(openai.BadRequestError) as caught:
            await client.completions.create(model="m", prompt=["a b", "a b c", "d"])
        assert caught.value.code == "context_length_exceeded"
        assert [call.status for call in await house.calls()] == ["completed", "refused", "completed"]


async def test_several_prompts_are_streamed_together_and_recorded_as_without_a_stream() -> None:
    prompts = ["once upon", "a time", "the end of it"]
    async with open_house(ScriptedEngine(delay=0.01)) as house:
        client = house.client(await house.rollout(), agent="writer")
        asked: dict[str, Any] = {"model": "m", "prompt": prompts, "n": 2, "logprobs": 1}
        asked["extra_body"] = {"return_token_ids": True}
        whole = await client.completions.create(**asked, extra_headers={"x-lightning-call": "whole"})
        chunks: list[Completion] = []
        stream = await client.completions.create(
            **asked,
            stream=True,
            stream_options={"include_usage": True},
            extra_headers={"x-lightning-call": "streamed"},
        )
        await drain(stream, chunks)
        *pieces, usage = chunks
        assert {chunk.id for chunk in chunks} == {"cmpl-streamed-0"}
        assert {chunk.system_fingerprint for chunk in chunks} == {whole.system_fingerprint}
        for said in whole.choices:
            mine = [chunk.choices[0] for chunk in pieces if chunk.choices[0].index == said.index]
            assert "".join(part.text for part in mine) == said.text
            assert [part.finish_reason for part in mine] == [*[None] * (len(mine) - 1), said.finish_reason]
            given = said.model_extra or {}
            extras = [part.model_extra or {} for part in mine]
            assert [token for each in extras for token in each["token_ids"]] == given["token_ids"]
            assert {tuple(each["prompt_token_ids"]) for each in extras} == {tuple(given["prompt_token_ids"])}
            logprobs = [part.logprobs for part in mine if part.logprobs]
            assert said.logprobs is not None
            offsets = [offset for each in logprobs for offset in each.text_offset or []]
            assert offsets == said.logprobs.text_offset
        assert usage.choices == []
        assert usage.usage == whole.usage
        both = [call for call in await house.calls() if "." not in call.id]
    once, streamed = ([call for call in both if call.id.startswith(kind)] for kind in ("whole", "streamed"))
    assert [call.id for call in streamed] == ["streamed-0", "streamed-1", "streamed-2"]
    assert [call.request["prompt"] for call in streamed] == prompts
    for one, other in zip(once, streamed, strict=True):
        assert (one.agent, one.status, one.prompt_ids) == (other.agent, other.status, other.prompt_ids)
        assert one.choices == other.choices


async def test_no_streamed_prompt_waits_for_the_end_of_another() -> None:
    async with open_house(ScriptedEngine(pause_after=1)) as house:
        client = house.client(await house.rollout())
        stream = await client.completions.create(model="m", prompt=["a b", "c d", "e f"], stream=True)
        before: dict[int, str] = {}
        async for chunk in stream:
            before[chunk.choices[0].index] = chunk.choices[0].text
            if len(before) == 3:
                break
        assert before == {0: "a", 1: "c", 2: "e"}
        house.engine.resume.set()
        rest: list[Completion] = []
        await drain(stream, rest)
        after = {chunk.choices[0].index: chunk.choices[0].text for chunk in rest if chunk.choices[0].text}
        assert after == {0: " b", 1: " d", 2: " f"}


async def test_of_several_streamed_prompts_one_that_fails_ends_the_stream_with_its_error() -> None:
    async with open_house(ScriptedEngine(context=2)) as house:
        client = house.client(await house.rollout())
        stream = await client.completions.create(model="m", prompt=["a b", "a b c", "d"], stream=True)
        chunks: list[Completion] = []
        with pytest.raises(openai.APIError, match="maximum context length is 2 tokens"):
            await drain(stream, chunks)
        assert {chunk.choices[0].index for chunk in chunks} == {0, 2}
        assert [call.status for call in await house.calls()] == ["completed", "refused", "completed"]
        with pytest.raises(openai.BadRequestError, match="maximum context length is 2 tokens"):
            await client.completions.create(model="m", prompt=["a b c", "d e f"], stream=True)


async def test_a_client_that_leaves_a_stream_of_several_prompts_ends_them_all() -> None:
    async with open_house(ScriptedEngine(delay=0.2)) as house:
        client = house.client(await house.rollout())
        stream = await client.completions.create(model="m", prompt=["a b c d", "e f g h"], stream=True)
        await stream.close()
        await until(lambda: house.engine.closed == 2)
    calls = await house.calls()
    assert [(call.status, call.error) for call in calls] == [("cancelled", "the client disconnected")] * 2


async def test_more_prompts_than_a_request_may_hold_are_refused(house: House) -> None:
    client = house.client(await house.rollout())
    with pytest.raises(openai.BadRequestError, match="at most 128"):
        await client.completions.create(model="m", prompt=["a"] * 129)
    assert not house.engine.requests
