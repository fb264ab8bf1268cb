"""The laws that every adapter obeys."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, ClassVar

import pytest
from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool
from lightning_openai_agents import attach, uninstall
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from lightning_core.testing.conformance import *  # noqa: F403
from lightning_core.testing.conformance import Ability, Framework, Member
from plugins.openai_agents.tests.tracing import Recorder

App = list[Agent[None]]


class OpenAIAgents(Framework):
    """A run of each agent, one after the other."""

    plugin = "openai_agents"
    modules = ("agents",)
    lacks: ClassVar[dict[Ability, str]] = {"tool events": "the plugin does not report tools"}

    def open_model(self, **client: Any) -> AbstractAsyncContextManager[AsyncOpenAI]:
        # No generator: the SDK's `run_sync` shuts down all async generators of its loop.
        return AsyncOpenAI(http_client=DefaultAsyncHttpxClient(verify=False), **client)

    def build(self, client: AsyncOpenAI, members: Sequence[Member]) -> App:
        model = OpenAIChatCompletionsModel("any", client)
        return [
            attach(
                Agent(
                    name=member.name,
                    instructions=member.instructions,
                    model=model,
                    tools=[function_tool(tool) for tool in member.tools],
                )
            )
            for member in members
        ]

    async def run(self, app: App, task: str) -> object:
        return [await Runner.run(agent, task) for agent in app]

    async def stream(self, app: App, task: str) -> AsyncIterator[object]:
        for agent in app:
            result = Runner.run_streamed(agent, task)
            try:
                async for event in result.stream_events():
                    yield event
            finally:
                result.cancel()

    def run_sync(self, app: App, task: str) -> object:
        return [Runner.run_sync(agent, task) for agent in app]


@pytest.fixture
def framework(recorder: Recorder) -> Iterator[Framework]:
    yield OpenAIAgents()
    uninstall()
