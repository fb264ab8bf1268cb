"""The laws that every adapter obeys."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from lightning_pydantic_ai import attach, detach
from openai import AsyncOpenAI
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from lightning_core.testing.adapter_laws import *  # noqa: F403
from lightning_core.testing.conformance import *  # noqa: F403
from lightning_core.testing.conformance import Framework, TeamMember


class PydanticAI(Framework):
    """One agent after the other."""

    plugin = "pydantic_ai"
    modules = ("pydantic_ai",)

    def open_model(self, **client: Any) -> AbstractAsyncContextManager[AsyncOpenAI]:
        return AsyncOpenAI(**client)

    def build(self, client: AsyncOpenAI, members: Sequence[TeamMember]) -> list[Agent]:
        model = OpenAIChatModel("any", provider=OpenAIProvider(openai_client=client))
        agents = [
            Agent(model, name=one.name, instructions=one.instructions, tools=one.tools) for one in members
        ]
        attach(agents[0])  # one line for all of them
        return agents

    async def run(self, app: list[Agent], task: str) -> None:
        for agent in app:
            await agent.run(task)

    async def stream(self, app: list[Agent], task: str) -> AsyncIterator[object]:
        for agent in app:
            async with agent.run_stream_events(task) as events:
                async for event in events:
                    yield event

    def run_sync(self, app: list[Agent], task: str) -> None:
        for agent in app:
            agent.run_sync(task)


@pytest.fixture
def framework() -> Iterator[Framework]:
    yield PydanticAI()
    detach()
