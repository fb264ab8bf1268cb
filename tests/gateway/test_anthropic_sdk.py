"""Anthropic's own SDK reads what the gateway says."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.gateway.conftest import House, open_house
from tests.gateway.scripted import Line, ScriptedEngine
from tests.gateway.test_anthropic import LOOKS, TOOL

anthropic = pytest.importorskip("anthropic")

ASKED: dict[str, Any] = {
    "model": "m",
    "max_tokens": 50,
    "messages": [{"role": "user", "content": "one two three"}],
}


def client(house: House, token: str, agent: str = "writer") -> Any:
    """Anthropic's client as a program that can't be touched would make it: from base URL and key alone."""
    base = f"{house.url}/rollouts/r1/agents/{agent}"
    return anthropic.AsyncAnthropic(base_url=base, api_key=token, max_retries=0)


async def test_a_message_a_stream_and_a_tool_use_are_read() -> None:
    def says(request: Any, choice: int) -> Line:
        return Line("let me", LOOKS) if request.tools else Line("three")

    async with open_house(ScriptedEngine(says=says)) as house, client(house, await house.rollout()) as asker:
        message = await asker.messages.create(**ASKED)
        assert (message.content[0].text, message.stop_reason) == ("three", "end_turn")
        assert (message.usage.input_tokens, message.usage.output_tokens) == (3, 2)
        whole = await asker.messages.create(**ASKED, tools=[TOOL])
        async with asker.messages.stream(**ASKED, tools=[TOOL]) as stream:
            text = "".join([piece async for piece in stream.text_stream])
            streamed = await stream.get_final_message()
        assert text == "let me"
        assert [block.type for block in streamed.content] == ["text", "tool_use", "tool_use"]
        assert streamed.content[2].input == {"at": 1}
        kept = {"content", "stop_reason", "stop_sequence", "usage", "role", "model"}
        assert streamed.model_dump(include=kept) == whole.model_dump(include=kept)
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": "seen"}
            for block in whole.content
            if block.type == "tool_use"
        ]
        turns = [
            *ASKED["messages"],
            {"role": "assistant", "content": whole.content},
            {"role": "user", "content": results},
        ]
        await asker.messages.create(**{**ASKED, "messages": turns}, tools=[TOOL])
        calls = await house.calls()
        assert {(call.agent, call.dialect, call.status) for call in calls} == {
            ("writer", "anthropic", "completed")
        }
        assert house.engine.requests[-1].messages[1] == calls[1].choices[0].message


async def test_errors_are_the_sdks_exceptions() -> None:
    async with open_house(ScriptedEngine(fails_after=2, delay=0.01)) as house:
        token = await house.rollout()
        async with client(house, token) as asker:
            with pytest.raises(anthropic.BadRequestError, match="mirostat"):
                await asker.messages.create(**ASKED, extra_body={"mirostat": 5})
            with pytest.raises(anthropic.InternalServerError, match="out of memory"):
                await asker.messages.create(**ASKED)
            stream = await asker.messages.create(**ASKED, stream=True)
            with pytest.raises(anthropic.APIStatusError, match="out of memory"):
                [event async for event in stream]
        async with client(house, "sk-ant-x") as asker:
            with pytest.raises(anthropic.AuthenticationError):
                await asker.messages.create(**ASKED)
        async with client(house, token) as asker:
            with pytest.raises(anthropic.NotFoundError) as caught:
                await asker.messages.batches.list()
        assert caught.value.body["type"] == "error"
        assert caught.value.body["error"]["type"] == "not_found_error"
        async with httpx.AsyncClient(base_url=house.url) as web:
            assert (await web.get("/v1/messages")).json()["type"] == "error"
            assert (await web.get("/v1/responses")).json()["error"]["code"] == "method_not_allowed"


async def test_the_tokens_of_a_prompt_are_counted_and_nothing_is_recorded() -> None:
    async with open_house() as house, client(house, await house.rollout()) as asker:
        counted = await asker.messages.count_tokens(
            model="m", system="be kind", messages=ASKED["messages"], tools=[TOOL]
        )
        assert counted.input_tokens == 5  # the words of the system prompt and of the user
        with pytest.raises(anthropic.BadRequestError, match="messages must be a list"):
            await asker.messages.count_tokens(model="m", messages=[])
        openai = house.client(await house.rollout("r2"))
        assert (await openai.responses.input_tokens.count(model="m", input="one two")).input_tokens == 2
        assert (await house.calls(), house.engine.opened) == ([], 0)


async def test_the_sdks_tool_runner_goes_on_without_threads() -> None:
    """It begins with `thread`, a beta of 2026, which is refused in the form that it knows."""

    @anthropic.beta_async_tool
    async def look(at: int) -> str:
        """Look at it.

        Args:
            at: where
        """
        return f"nothing at {at}"

    def says(request: Any, choice: int) -> Line:
        seen = request.messages[-1]["role"] == "tool"
        return Line(request.messages[-1]["content"]) if seen else Line("let me", LOOKS[1:])

    async with open_house(ScriptedEngine(says=says)) as house, client(house, await house.rollout()) as asker:
        runner = asker.beta.messages.tool_runner(**ASKED, tools=[look])
        last = await runner.until_done()
        assert last.content[0].text == "nothing at 1"
        assert [call.status for call in await house.calls()] == ["completed", "completed"]
