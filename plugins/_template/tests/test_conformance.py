"""The laws of agent-lightning-core, on this adapter."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from lightning_myframework import attach
from myframework import Agent
from openai import AsyncOpenAI

import lightning_core
from lightning_core.records.types import ToolEvent
from lightning_core.testing.conformance import *  # noqa: F403
from lightning_core.testing.conformance import Framework, TeamMember
from lightning_core.testing.server import serving
from lightning_core.testing.truth import mark
from lightning_core.tracing.scope import Scope, rollout_scope


class MyFramework(Framework):
    """How an app is built and run in myframework."""

    plugin = "myframework"
    modules = ("myframework",)

    def open_model(self, **client: Any) -> AbstractAsyncContextManager[AsyncOpenAI]:
        return AsyncOpenAI(**client)

    def build(self, model: AsyncOpenAI, members: Sequence[TeamMember]) -> Agent:
        following: Agent | None = None
        for member in reversed(members):
            following = Agent(model, member.name, member.instructions, member.tools, following)
        assert following is not None
        return attach(following)

    async def run(self, app: Agent, task: str) -> object:
        return await app.run(task)

    def stream(self, app: Agent, task: str) -> AsyncIterator[object]:
        return app.stream(task)

    def run_sync(self, app: Agent, task: str) -> object:
        return app.run_sync(task)


@pytest.fixture
def framework() -> Framework:
    return MyFramework()


@pytest.mark.asyncio
async def test_the_tool_of_an_agent_without_a_name_runs_and_is_reported() -> None:
    async def look_up(word: str) -> str:
        return word

    with serving() as server, rollout_scope(Scope("r1", 1, server.url, "token")) as scope:
        async with AsyncOpenAI(api_key="none", base_url=f"{server.url}/v1") as client:
            agent = attach(Agent(client, None, mark(calls="look_up"), [look_up]))
            await agent.run("Do it.")
    [event] = scope.seen
    assert isinstance(event, ToolEvent)
    assert (event.name, event.agent, event.error) == ("look_up", "unnamed", None)


def test_the_cores_attach_is_the_same(framework: Framework) -> None:
    agent = Agent(AsyncOpenAI(api_key="none"), "writer", "Write.")
    assert lightning_core.attach(agent) is agent
    assert attach(agent).hooks == agent.hooks
    assert len(agent.hooks) == 1
