"""The laws that every adapter obeys."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import pytest
from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool
from lightning_crewai import attach, detach

from lightning_core.testing.conformance import *  # noqa: F403
from lightning_core.testing.conformance import Ability, Framework, TeamMember


class CrewAI(Framework):
    """A crew in which each agent has one task."""

    plugin = "crewai"
    modules = ("crewai",)
    lacks: ClassVar[dict[Ability, str]] = {
        "shared apps": "a crew, and each of its agents, runs once at a time",
        "tool events": "no hook of CrewAI gives the id of the request; results are read from the wire",
    }

    @asynccontextmanager
    async def open_model(self, **client: Any) -> AsyncIterator[Callable[..., LLM]]:
        # CrewAI never closes its clients. They must keep no connection open.
        yield functools.partial(
            LLM, model="gpt-4o", default_headers={"connection": "close"}, is_litellm=False, **client
        )

    def build(self, model: Callable[..., LLM], members: Sequence[TeamMember]) -> Crew:
        agents = [self._agent(model(), member) for member in members]
        tasks = [Task(description="Do it.", expected_output="A text.", agent=agent) for agent in agents]
        return attach(Crew(agents=agents, tasks=tasks))

    async def run(self, app: Crew, task: str) -> object:
        return await app.akickoff(inputs={"task": task})

    async def stream(self, app: Crew, task: str) -> AsyncIterator[object]:
        app.stream = True
        async for chunk in await app.akickoff(inputs={"task": task}):
            yield chunk

    def run_sync(self, app: Crew, task: str) -> object:
        return app.kickoff(inputs={"task": task})

    def _agent(self, llm: LLM, member: TeamMember) -> Agent:
        tools = [tool(each.__name__)(each) for each in member.tools]
        return Agent(
            role=member.name,
            goal="Help.",
            backstory=member.instructions,
            llm=llm,
            tools=tools,
            max_retry_limit=0,  # of a task that failed, which would be asked anew
        )


@pytest.fixture
def framework() -> Iterator[Framework]:
    yield CrewAI()
    detach()
