"""The thoughts of a reasoning model reach apps as each API gives them, and come back from them."""

from __future__ import annotations

from typing import Any

import anthropic
import pytest

from tests.gateway.conftest import House, open_house
from tests.gateway.scripted import Line, ScriptedEngine

THOUGHT = "First this.\nThen that."
LOOK = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at":"x"}'}}
HELLO: list[Any] = [{"role": "user", "content": "hello"}]
REMEMBERED = {"role": "assistant", "reasoning_content": THOUGHT}
AGAIN: list[Any] = [{"role": "user", "content": "go on"}]


def thinking(*, calls: bool = False) -> ScriptedEngine:
    line = Line(thought=THOUGHT, tool_calls=[LOOK]) if calls else Line("so it is", thought=THOUGHT)
    return ScriptedEngine(says=lambda request, choice: line)


def messages_api(house: House, token: str) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(api_key=token, base_url=house.url, max_retries=0)


async def test_the_thought_is_recorded_beside_the_reply() -> None:
    async with open_house(thinking()) as house:
        client = house.client(await house.rollout())
        await client.chat.completions.create(model="m", messages=HELLO)
        call = await house.one_call()
        assert call.choices[0].message == {**REMEMBERED, "content": "so it is"}


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
async def test_chat_completions_give_it_whole_and_streamed_and_take_it_back(name: str) -> None:
    async with open_house(thinking()) as house:
        client = house.client(await house.rollout())
        reply = await client.chat.completions.create(model="m", messages=HELLO)
        said = reply.choices[0].message.model_dump()
        assert (said[name], said["content"]) == (THOUGHT, "so it is")
        stream = await client.chat.completions.create(model="m", messages=HELLO, stream=True)
        deltas = [chunk.choices[0].delta.model_dump() async for chunk in stream]
        assert "".join(delta.get(name) or "" for delta in deltas) == THOUGHT
        assert "".join(delta["content"] or "" for delta in deltas) == "so it is"
        history: list[Any] = [*HELLO, {"role": "assistant", "content": "so it is", name: THOUGHT}, *AGAIN]
        await client.chat.completions.create(model="m", messages=history)
        assert house.engine.requests[-1].messages[1] == {**REMEMBERED, "content": "so it is"}


async def test_responses_give_an_item_and_take_it_back() -> None:
    async with open_house(thinking()) as house:
        client = house.client(await house.rollout())
        reply = await client.responses.create(model="m", input="hello")
        thought, message = reply.output
        assert (thought.type, message.type) == ("reasoning", "message")
        assert thought.model_dump()["content"] == [{"type": "reasoning_text", "text": THOUGHT}]
        assert reply.output_text == "so it is"
        history: list[Any] = [*HELLO, *(item.model_dump() for item in reply.output), *AGAIN]
        await client.responses.create(model="m", input=history)
        assert house.engine.requests[-1].messages[1] == {**REMEMBERED, "content": "so it is"}
        await client.responses.create(model="m", input=AGAIN, previous_response_id=reply.id)
        assert house.engine.requests[-1].messages[1] == {**REMEMBERED, "content": "so it is"}


async def test_a_streamed_response_has_the_events_of_a_thought() -> None:
    async with open_house(thinking(calls=True)) as house:
        client = house.client(await house.rollout())
        stream = await client.responses.create(model="m", input="hello", stream=True)
        events = [event.model_dump() async for event in stream]
        kinds = list(dict.fromkeys(event["type"].removeprefix("response.") for event in events))
        assert kinds[2:8] == [
            "output_item.added",
            "content_part.added",
            "reasoning_text.delta",
            "reasoning_text.done",
            "content_part.done",
            "output_item.done",
        ]
        pieces = [event["delta"] for event in events if event["type"] == "response.reasoning_text.delta"]
        assert "".join(pieces) == THOUGHT
        thought, call = events[-1]["response"]["output"]
        assert [event["item"] for event in events if event["type"] == "response.output_item.done"] == [
            thought,
            call,
        ]
        assert thought["content"] == [{"type": "reasoning_text", "text": THOUGHT}]
        assert (call["type"], call["name"]) == ("function_call", "look")
        assert len({event["item_id"] for event in events if "reasoning_text" in event["type"]}) == 1


async def test_a_thought_before_a_call_comes_back_with_it() -> None:
    async with open_house(thinking(calls=True)) as house:
        client = house.client(await house.rollout())
        reply = await client.responses.create(model="m", input="hello")
        result = {"type": "function_call_output", "call_id": "c1", "output": "a boat"}
        history: list[Any] = [*HELLO, *(item.model_dump() for item in reply.output), result]
        await client.responses.create(model="m", input=history)
        assert house.engine.requests[-1].messages[1] == {**REMEMBERED, "content": None, "tool_calls": [LOOK]}


async def test_messages_give_a_block_whole_and_streamed_and_take_it_back() -> None:
    async with open_house(thinking()) as house:
        client = messages_api(house, await house.rollout())
        asked: dict[str, Any] = {"model": "m", "max_tokens": 50}
        reply = await client.messages.create(messages=HELLO, **asked)
        blocks = [block.model_dump() for block in reply.content]
        assert [block["type"] for block in blocks] == ["thinking", "text"]
        assert (blocks[0]["thinking"], blocks[1]["text"]) == (THOUGHT, "so it is")
        async with client.messages.stream(messages=HELLO, **asked) as stream:
            streamed = await stream.get_final_message()
        assert [block.model_dump() for block in streamed.content] == blocks
        hidden = {"type": "redacted_thinking", "data": "x"}
        await client.messages.create(
            messages=[*HELLO, {"role": "assistant", "content": [hidden, *blocks]}, *AGAIN], **asked
        )
        assert house.engine.requests[-1].messages[1] == {**REMEMBERED, "content": "so it is"}
        await client.close()
