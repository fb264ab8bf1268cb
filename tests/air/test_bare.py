"""AIR without a plugin: a bare client's own loop, and what the wire tells, in each dialect."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import openai
import pytest

import lightning_core as lightning
from tests.air.playing import ASKED, REFUSING, TOOL, check, play

SCHEMA = {
    "type": "object",
    "properties": {"word": {"type": "string"}},
    "required": ["word"],
    "additionalProperties": False,
}


def use(name: str, arguments: str) -> tuple[str, bool]:
    """Returns an app's own result of a tool for the model, and whether it failed."""
    if name == REFUSING:
        return "Error: there is no such word", True
    try:
        word = json.loads(arguments)["word"]
    except (ValueError, LookupError) as problem:
        return f"Error: {problem!r}", True
    return (f"{word} is a word", False) if name == TOOL else (f"Error: no tool {name!r}", True)


async def chat(question: str) -> None:
    functions = [{"name": name, "parameters": SCHEMA} for name in (TOOL, REFUSING)]
    tools: Any = [{"type": "function", "function": function} for function in functions]
    messages: list[Any] = [{"role": "user", "content": question}]
    async with openai.AsyncOpenAI(api_key="none") as client:
        while True:
            reply = await client.chat.completions.create(model="any", messages=messages, tools=tools)
            message: Any = reply.choices[0].message
            if not message.tool_calls:
                return
            messages.append(message.model_dump(exclude_none=True))
            for asked in message.tool_calls:
                text, _ = use(asked.function.name, asked.function.arguments)
                messages.append({"role": "tool", "tool_call_id": asked.id, "content": text})


async def responses(question: str) -> None:
    """Only what is new is sent; the gateway keeps the conversation."""
    tools: Any = [{"type": "function", "name": name, "parameters": SCHEMA} for name in (TOOL, REFUSING)]
    given: Any = question
    before: Any = openai.omit
    async with openai.AsyncOpenAI(api_key="none") as client:
        while True:
            reply = await client.responses.create(
                model="any", input=given, tools=tools, previous_response_id=before
            )
            asked: list[Any] = [item for item in reply.output if item.type == "function_call"]
            if not asked:
                return
            before = reply.id
            given = [
                {"type": "function_call_output", "call_id": a.call_id, "output": use(a.name, a.arguments)[0]}
                for a in asked
            ]


async def anthropic(question: str) -> None:
    sdk = pytest.importorskip("anthropic")
    tools: Any = [{"name": name, "input_schema": SCHEMA} for name in (TOOL, REFUSING)]
    messages: list[Any] = [{"role": "user", "content": question}]
    async with sdk.AsyncAnthropic(api_key="none") as client:
        while True:
            reply = await client.messages.create(model="any", max_tokens=50, messages=messages, tools=tools)
            asked = [block for block in reply.content if block.type == "tool_use"]
            if not asked:
                return
            results = []
            for block in asked:
                text, failed = use(block.name, json.dumps(block.input))
                results.append(
                    {
                        "type": "tool_result",
                        "tool_use_id": block.id,
                        "content": text.removeprefix("Error: "),
                        "is_error": failed,
                    }
                )
            messages += [
                {"role": "assistant", "content": reply.content},
                {"role": "user", "content": results},
            ]


@pytest.mark.parametrize("dialect", [chat, responses, anthropic])
async def test_each_fault_is_found_once_from_the_wire_alone(dialect: Callable[[str], Any]) -> None:
    async def app(question: str) -> None:
        with lightning.agent("clerk"):
            await dialect(question)

    # Anthropic's wire carries arguments as an object, so what is not JSON never gets as far as that
    tasks = [name for name in ASKED if dialect is not anthropic or name != "garbled"]
    rewards, calls = await play(app, tasks)
    assert {call.dialect for of_one in calls.values() for call in of_one} == {dialect.__name__}
    check(rewards, calls, "clerk")
