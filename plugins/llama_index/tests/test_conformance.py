"""The laws that every adapter obeys."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from lightning_llama_index import attach, detach
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.llms.openai_like import OpenAILike
from openai import DefaultAsyncHttpxClient

from lightning_core.testing.adapter_laws import *  # noqa: F403
from lightning_core.testing.conformance import *  # noqa: F403
from lightning_core.testing.conformance import Framework, TeamMember


class LlamaIndex(Framework):
    """One agent after the other."""

    plugin = "llama_index"
    modules = ("llama_index", "workflows")

    @asynccontextmanager
    async def open_model(self, **client: Any) -> AsyncIterator[OpenAILike]:
        if "base_url" in client:
            client["api_base"] = client.pop("base_url")
        async with DefaultAsyncHttpxClient(verify=False) as http:
            yield OpenAILike(
                "any",
                is_chat_model=True,
                is_function_calling_model=True,
                async_http_client=http,
                **client,
            )

    def build(self, model: OpenAILike, members: Sequence[TeamMember]) -> list[FunctionAgent]:
        agents = [
            FunctionAgent(name=one.name, system_prompt=one.instructions, tools=list(one.tools), llm=model)
            for one in members
        ]
        attach(agents[0])  # one line for all of them
        return agents

    async def run(self, app: list[FunctionAgent], task: str) -> None:
        for agent in app:
            await agent.run(user_msg=task)

    async def stream(self, app: list[FunctionAgent], task: str) -> AsyncIterator[object]:
        for agent in app:
            handler = agent.run(user_msg=task)
            try:
                async for event in handler.stream_events():
                    yield event
                await handler
            finally:
                await handler.cancel_run()

    def run_sync(self, app: list[FunctionAgent], task: str) -> None:
        asyncio.get_event_loop().run_until_complete(self.run(app, task))


@pytest.fixture
def framework() -> Iterator[Framework]:
    yield LlamaIndex()
    detach()
