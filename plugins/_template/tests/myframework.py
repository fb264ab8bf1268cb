"""Stands in for the framework: agents with tools, one after the other, and hooks around their work."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from openai import AsyncOpenAI


class Agent:
    """Calls tools until the model answers in words, then lets the next agent work."""

    def __init__(
        self,
        client: AsyncOpenAI,
        name: str | None,
        instructions: str,
        tools: Sequence[Callable[..., Any]] = (),
        then: Agent | None = None,
    ) -> None:
        self.client, self.name, self.instructions, self.then = client, name, instructions, then
        self.tools = {tool.__name__: tool for tool in tools}
        self.hooks: list[Any] = []

    async def run(self, task: str) -> str:
        return [text async for text in self.stream(task)][-1]

    def run_sync(self, task: str) -> str:
        return asyncio.get_event_loop().run_until_complete(self.run(task))

    async def stream(self, task: str) -> AsyncIterator[str]:
        messages: list[Any] = [
            {"role": "system", "content": self.instructions},
            {"role": "user", "content": task},
        ]
        while True:
            message = await self._hooked("around_call", functools.partial(self._call, messages))
            yield message.content or ""
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                break
            messages += await asyncio.gather(*(self._use(call) for call in message.tool_calls))
        if self.then is not None:
            async for text in self.then.stream(task):
                yield text

    async def _call(self, messages: list[Any]) -> Any:
        tools: Any = [_described(tool) for tool in self.tools.values()]
        reply = await self.client.chat.completions.create(
            model="any", messages=messages, **({"tools": tools} if tools else {})
        )
        return reply.choices[0].message

    async def _use(self, call: Any) -> dict[str, str]:
        tool = self.tools[call.function.name]
        arguments = json.loads(call.function.arguments)

        async def proceed() -> str:
            if inspect.iscoroutinefunction(tool):
                return str(await tool(**arguments))
            return str(await asyncio.to_thread(tool, **arguments))

        return {
            "role": "tool",
            "tool_call_id": call.id,
            "content": await self._hooked("around_tool", proceed, call),
        }

    async def _hooked(self, name: str, proceed: Callable[[], Awaitable[Any]], *about: Any) -> Any:
        for hooks in self.hooks:
            proceed = functools.partial(getattr(hooks, name), self, *about, proceed)
        return await proceed()


def _described(tool: Callable[..., Any]) -> dict[str, Any]:
    names = list(inspect.signature(tool).parameters)
    parameters = {
        "type": "object",
        "properties": {name: {"type": "string"} for name in names},
        "required": names,
    }
    return {
        "type": "function",
        "function": {"name": tool.__name__, "description": tool.__doc__, "parameters": parameters},
    }
