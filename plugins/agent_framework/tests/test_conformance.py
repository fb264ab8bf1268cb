"""The laws that every adapter obeys."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from agent_framework import Agent
from agent_framework.openai import OpenAIChatCompletionClient
from lightning_agent_framework import attach, detach
from openai import AsyncOpenAI

from lightning_core.testing.adapter_laws import *  # noqa: F403
from lightning_core.testing.conformance import *  # noqa: F403
from lightning_core.testing.conformance import Framework, TeamMember


class AgentFramework(Framework):
    """One agent after the other."""

    plugin = "agent_framework"
    modules = ("agent_framework",)

    def open_model(self, **client: Any) -> AbstractAsyncContextManager[AsyncOpenAI]:
        return AsyncOpenAI(**client)

    def build(self, model: AsyncOpenAI, members: Sequence[TeamMember]) -> list[Agent]:
        client = OpenAIChatCompletionClient("any", async_client=model)
        agents = [Agent(client, one.instructions, name=one.name, tools=one.tools) for one in members]
        attach(agents[0])  # one line for all of them
        return agents

    async def run(self, app: list[Agent], task: str) -> None:
        for agent in app:
            await agent.run(task)

    async def stream(self, app: list[Agent], task: str) -> AsyncIterator[object]:
        for agent in app:
            stream = agent.run(task, stream=True)
            try:
                async for update in stream:
                    yield update
            finally:
                await stream.close()

    def run_sync(self, app: list[Agent], task: str) -> None:
        asyncio.get_event_loop().run_until_complete(self.run(app, task))


@pytest.fixture
def framework() -> Iterator[Framework]:
    yield AgentFramework()
    detach()
