"""The laws that every adapter obeys."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, ClassVar

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.teams import RoundRobinGroupChat
from lightning_autogen import attach, detach

from lightning_core.testing.conformance import *  # noqa: F403
from lightning_core.testing.conformance import Ability, Framework, TeamMember
from plugins.autogen.tests.playing import open_client


class AutoGen(Framework):
    """One agent alone, or a team that gives each member a turn."""

    plugin = "autogen"
    modules = ("autogen_core", "autogen_agentchat", "autogen_ext")
    lacks: ClassVar[dict[Ability, str]] = {
        "sync": "AutoGen's agents and teams are asynchronous throughout",
        "shared apps": "an agent keeps what it was told, and a team runs once at a time",
    }

    def open_model(self, **client: Any) -> AbstractAsyncContextManager[Any]:
        return open_client(**client)

    def build(self, model: Any, members: Sequence[TeamMember]) -> Any:
        agents = [self._agent(model, member) for member in members]
        if len(agents) == 1:
            return attach(agents[0])
        return attach(RoundRobinGroupChat(agents, max_turns=len(agents)))

    async def run(self, app: Any, task: str) -> object:
        return await app.run(task=task)

    def stream(self, app: Any, task: str) -> AsyncIterator[object]:
        return app.run_stream(task=task)

    def _agent(self, model: Any, member: TeamMember) -> AssistantAgent:
        return AssistantAgent(
            member.name,
            model,
            system_message=member.instructions,
            tools=list(member.tools),
            max_tool_iterations=9,
        )


@pytest.fixture
def framework() -> Iterator[Framework]:
    yield AutoGen()
    detach()
