"""The laws that every adapter obeys."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, ClassVar

import pytest
from agents import Agent, Model, OpenAIChatCompletionsModel, Runner, function_tool
from lightning_openai_agents import attach, uninstall
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from lightning_core.testing.conformance import *  # noqa: F403
from lightning_core.testing.conformance import Ability, Framework, TeamMember
from lightning_core.testing.truth import find_marks, mark
from plugins.openai_agents.tests.tracing import Recorder


class OpenAIAgents(Framework):
    """Each agent hands over to the next."""

    plugin = "openai_agents"
    modules = ("agents",)
    lacks: ClassVar[dict[Ability, str]] = {
        "tool events": "no hook gives the id of the request; results are read from the wire"
    }

    def open_model(self, **client: Any) -> AbstractAsyncContextManager[AsyncOpenAI]:
        # No generator: the SDK's `run_sync` shuts down all async generators of its loop.
        return AsyncOpenAI(http_client=DefaultAsyncHttpxClient(verify=False), **client)

    def build(self, client: AsyncOpenAI, members: Sequence[TeamMember]) -> Agent[None]:
        model = OpenAIChatCompletionsModel("any", client)
        following: Agent[None] | None = None
        for member in reversed(members):
            following = self._agent(model, member, following)
        assert following is not None
        return attach(following)

    async def run(self, app: Agent[None], task: str) -> object:
        return await Runner.run(app, task)

    async def stream(self, app: Agent[None], task: str) -> AsyncIterator[object]:
        result = Runner.run_streamed(app, task)
        try:
            async for event in result.stream_events():
                yield event
        finally:
            result.cancel()

    def run_sync(self, app: Agent[None], task: str) -> object:
        return Runner.run_sync(app, task)

    def _agent(self, model: Model, member: TeamMember, following: Agent[None] | None) -> Agent[None]:
        instructions, handoffs = member.instructions, []
        if following is not None:
            script = find_marks(instructions).get("calls")
            steps = [step for step in (script, f"transfer_to_{following.name}") if step]
            instructions += mark(calls=",".join(steps))
            handoffs.append(following)
        tools = [function_tool(tool) for tool in member.tools]
        return Agent(
            name=member.name, instructions=instructions, model=model, tools=tools, handoffs=[*handoffs]
        )


@pytest.fixture
def framework(recorder: Recorder) -> Iterator[Framework]:
    yield OpenAIAgents()
    uninstall()
