"""Streaming really streams, says the same as a whole reply, and is recorded all the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import orjson
import pytest
from openai.types.chat import ChatCompletionChunk

from lightning_core.dialects.upstream import ChatRequest
from tests.gateway.conftest import House, drain, open_house
from tests.gateway.raw import exchange
from tests.gateway.scripted import END, Line, ScriptedEngine, logprob, until

HI: list[Any] = [{"role": "user", "content": "one two three four"}]
CALLS = [
    {"id": f"c{i}", "type": "function", "function": {"name": "look", "arguments": f'{{"at":{i}}}'}}
    for i in range(2)
]


async def stream_events(
    web: httpx.AsyncClient, token: str, **fields: Any
) -> AsyncIterator[dict[str, Any] | str]:
    """The events of a streamed completion, as they arrive."""
    body = {"model": "m", "messages": HI, "stream": True, **fields}
    headers = {"authorization": f"Bearer {token}"}
    async with web.stream("POST", "/v1/chat/completions", json=body, headers=headers) as reply:
        assert reply.status_code == 200
        assert reply.headers["content-type"].startswith("text/event-stream")
        async for line in reply.aiter_lines():
            if line:
                assert line.startswith("data: ")
                yield line[6:] if line == "data: [DONE]" else orjson.loads(line[6:])


async def test_the_first_token_leaves_before_the_last_is_made() -> None:
    async with open_house(ScriptedEngine(pause_after=2)) as house:
        client = house.client(await house.rollout())
        stream = await client.chat.completions.create(model="m", messages=HI, stream=True)
        text = ""
        async for chunk in stream:
            text += chunk.choices[0].delta.content or ""
            if text == "one two":
                assert not house.engine.resume.is_set()
                assert await house.calls() == []
                house.engine.resume.set()
        assert text == "one two three four"


async def test_the_call_is_in_the_store_before_the_finish_reason_leaves(
    house: House, web: httpx.AsyncClient
) -> None:
    seen = []
    async for event in stream_events(web, await house.rollout()):
        if isinstance(event, dict) and event["choices"][0]["finish_reason"]:
            seen.append((await house.one_call()).status)
    assert seen == ["completed"]


async def test_chunks_come_in_openais_order(house: House, web: httpx.AsyncClient) -> None:
    token = await house.rollout()
    options = {"stream_options": {"include_usage": True}}
    events = [event async for event in stream_events(web, token, **options)]
    *chunks, usage, done = events
    assert done == "[DONE]"
    assert isinstance(usage, dict)
    assert usage["choices"] == []
    assert usage["usage"] == {
        "prompt_tokens": 4,
        "completion_tokens": 5,
        "total_tokens": 9,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if isinstance(chunk, dict)]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(delta.get("content", "") for delta in deltas) == "one two three four"
    assert deltas[-1] == {}
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks if isinstance(chunk, dict)]
    assert set(reasons[:-1]) == {None}
    assert reasons[-1] == "stop"
    assert len({chunk["id"] for chunk in chunks if isinstance(chunk, dict)}) == 1


async def test_a_stream_is_recorded_like_a_whole_reply(house: House) -> None:
    client = house.client(await house.rollout())
    await client.chat.completions.create(model="m", messages=HI, n=2)
    stream = await client.chat.completions.create(model="m", messages=HI, n=2, stream=True)
    async for _ in stream:
        pass
    whole, streamed = await house.calls()
    assert streamed.choices == whole.choices
    assert streamed.prompt_ids == whole.prompt_ids
    assert (streamed.status, streamed.policy_version) == ("completed", 7)
    said = [*house.engine.encode(HI[0]["content"]), END]
    assert streamed.choices[0].completion_ids == said
    assert streamed.choices[0].logprobs == [logprob(token) for token in said]


async def test_interleaved_choices_stay_apart() -> None:
    async with open_house(ScriptedEngine(delay=0.001)) as house:
        client = house.client(await house.rollout())
        stream = await client.chat.completions.create(model="m", messages=HI, n=3, stream=True)
        texts = ["", "", ""]
        async for chunk in stream:
            texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
        assert texts == ["one two three four", "one two three four 1", "one two three four 2"]


async def test_streamed_tool_calls_have_rising_indexes() -> None:
    async with open_house(ScriptedEngine(says=lambda request, choice: Line("ok", CALLS))) as house:
        client = house.client(await house.rollout())
        tools: Any = [{"type": "function", "function": {"name": "look"}}]
        stream = await client.chat.completions.create(model="m", messages=HI, tools=tools, stream=True)
        calls, reasons = [], []
        async for chunk in stream:
            assert len(chunk.choices[0].delta.tool_calls or []) <= 1
            calls += chunk.choices[0].delta.tool_calls or []
            reasons.append(chunk.choices[0].finish_reason)
        assert [(call.index, call.id, call.function.name, call.function.arguments) for call in calls] == [
            (0, "c0", "look", ""),
            (0, None, None, '{"at":0}'),
            (1, "c1", "look", ""),
            (1, None, None, '{"at":1}'),
        ]
        assert reasons[-1] == "tool_calls"
        message = (await house.one_call()).choices[0].message
        assert message == {"role": "assistant", "content": "ok", "tool_calls": CALLS}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # LlamaIndex's own
async def test_llama_index_runs_every_parallel_call_of_a_stream() -> None:
    models = pytest.importorskip("llama_index.llms.openai_like")
    from llama_index.core.agent.workflow import FunctionAgent

    ran: list[int] = []

    def look(at: int) -> str:
        """Looks somewhere."""
        ran.append(at)
        return f"seen {at}"

    def says(request: ChatRequest, choice: int) -> Line:
        answered = [message for message in request.messages if message["role"] == "tool"]
        return Line("done") if answered else Line("", CALLS)

    async with open_house(ScriptedEngine(says=says)) as house:
        llm = models.OpenAILike(
            "m",
            api_base=f"{house.url}/v1",
            api_key=await house.rollout(),
            is_chat_model=True,
            is_function_calling_model=True,
        )
        reply = await FunctionAgent(name="clerk", tools=[look], llm=llm).run(user_msg="Look twice.")
        assert (str(reply), sorted(ran)) == ("done", [0, 1])
        results = [each for each in house.engine.requests[1].messages if each["role"] == "tool"]
        assert [each["content"] for each in results] == ["seen 0", "seen 1"]


async def test_a_streamed_tool_call_does_not_begin_with_an_empty_text(web: httpx.AsyncClient) -> None:
    async with open_house(ScriptedEngine(says=lambda request, choice: Line("", CALLS))) as house:
        web.base_url = httpx.URL(house.url)
        tools: Any = [{"type": "function", "function": {"name": "look"}}]
        events = [each async for each in stream_events(web, await house.rollout(), tools=tools)]
        deltas = [each["choices"][0]["delta"] for each in events if isinstance(each, dict)]
        assert deltas[0] == {"role": "assistant", "content": None}
        assert not any("content" in delta for delta in deltas[1:])


async def test_a_client_of_http_1_0_gets_a_stream_that_ends_with_the_connection(house: House) -> None:
    body = orjson.dumps({"messages": HI, "stream": True})
    lines = ("host: localhost", f"authorization: Bearer {await house.rollout()}")
    request = "\r\n".join(
        ("POST /v1/chat/completions HTTP/1.0", *lines, f"content-length: {len(body)}", "", "")
    )
    answer = await exchange(house.url, [request.encode() + body])
    start, _, events = answer.content.partition(b"\r\n\r\n")
    assert b"chunked" not in start
    assert b"connection: close" in start
    parts = events.split(b"\n\n")
    assert [part[:6] for part in parts[:-1]] == [b"data: "] * (len(parts) - 1)
    assert parts[-2:] == [b"data: [DONE]", b""]
    deltas = [orjson.loads(part[6:])["choices"][0]["delta"] for part in parts[:-2]]
    assert "".join(delta.get("content", "") for delta in deltas) == "one two three four"


async def test_a_client_of_http_1_0_gets_a_whole_reply_with_its_length(house: House) -> None:
    body = orjson.dumps({"messages": HI})
    lines = ("host: localhost", f"authorization: Bearer {await house.rollout()}")
    request = "\r\n".join(
        ("POST /v1/chat/completions HTTP/1.0", *lines, f"content-length: {len(body)}", "", "")
    )
    answer = await exchange(house.url, [request.encode() + body])
    assert f"content-length: {len(orjson.dumps(answer.json))}".encode() in answer.content
    assert answer.json["choices"][0]["message"]["content"] == "one two three four"


async def test_streamed_logprobs_and_ids_add_up_to_the_recorded_ones(
    house: House, web: httpx.AsyncClient
) -> None:
    token = await house.rollout()
    logprobs: list[float] = []
    ids: list[int] = []
    prompts = []
    async for event in stream_events(web, token, logprobs=True, top_logprobs=1, return_token_ids=True):
        if isinstance(event, dict):
            choice = event["choices"][0]
            logprobs += [entry["logprob"] for entry in (choice["logprobs"] or {}).get("content", [])]
            ids += choice.get("token_ids", [])
            if "prompt_token_ids" in event:
                prompts.append(event["prompt_token_ids"])
    call = await house.one_call()
    assert logprobs == call.choices[0].logprobs
    assert ids == call.choices[0].completion_ids
    assert prompts == [call.prompt_ids]


async def test_an_engine_that_fails_before_the_first_token_is_a_500() -> None:
    async with open_house(ScriptedEngine(fails_after=0)) as house:
        client = house.client(await house.rollout())
        with pytest.raises(openai.InternalServerError, match="out of memory"):
            await client.chat.completions.create(model="m", messages=HI, stream=True)
        assert (await house.one_call()).status == "failed"


async def test_an_engine_that_fails_midway_ends_the_stream_with_the_error() -> None:
    async with open_house(ScriptedEngine(fails_after=2, delay=0.01)) as house:
        client = house.client(await house.rollout())
        stream = await client.chat.completions.create(model="m", messages=HI, stream=True)
        chunks: list[ChatCompletionChunk] = []
        with pytest.raises(openai.APIError, match="out of memory") as caught:
            await drain(stream, chunks)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "one two"
        assert caught.value.code == "engine_failed"
        call = await house.one_call()
        assert call.status == "failed"
        assert call.error == "the engine failed: RuntimeError: out of memory"
        assert call.choices[0].completion_ids == house.engine.encode("one two")
        assert house.engine.closed == 1


async def test_a_client_that_leaves_a_stream_frees_the_engine_and_is_recorded_as_cancelled() -> None:
    async with open_house(ScriptedEngine(pause_after=2)) as house:
        client = house.client(await house.rollout())
        stream = await client.chat.completions.create(model="m", messages=HI, stream=True)
        async for chunk in stream:
            if chunk.choices[0].delta.content:
                break
        await stream.close()
        call = await house.one_call()
        assert call.status == "cancelled"
        assert call.error == "the client disconnected"
        assert call.choices[0].completion_ids == house.engine.encode("one two")
        await until(lambda: house.engine.closed == 1)
        assert not house.engine.resume.is_set()


async def test_a_reader_slower_than_the_engine_gets_every_token() -> None:
    words = " ".join(f"w{i}" for i in range(500))
    messages: Any = [{"role": "user", "content": words}]
    async with open_house(ScriptedEngine(delay=0.0001)) as house:
        client = house.client(await house.rollout())
        stream = await client.chat.completions.create(model="m", messages=messages, stream=True)
        text = ""
        async for chunk in stream:
            text += chunk.choices[0].delta.content or ""
            await asyncio.sleep(0.001)
        assert text == words
