"""The laws that every adapter obeys."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from threading import Lock
from typing import Any, ClassVar

import pytest
from lightning_smolagents import attach, detach
from openai import DefaultHttpxClient
from smolagents import LogLevel, OpenAIModel, ToolCallingAgent, tool

from lightning_core.testing.adapter_laws import *  # noqa: F403
from lightning_core.testing.conformance import *  # noqa: F403
from lightning_core.testing.conformance import Ability, Framework, TeamMember
from lightning_core.testing.truth import find_marks, mark

PARSING = Lock()
"""`tool` parses a source, and Python 3.11 counts the depth of `ast.parse` for all threads together."""


class Smolagents(Framework):
    """One agent after the other."""

    plugin = "smolagents"
    modules = ("smolagents",)
    answer_tool = "final_answer"
    lacks: ClassVar[dict[Ability, str]] = {"shared apps": "an agent keeps the memory of its run on itself"}

    @asynccontextmanager
    async def open_model(self, **client: Any) -> AsyncIterator[OpenAIModel]:
        # An app has one model for all its agents; smolagents never closes the client that it makes.
        with DefaultHttpxClient(verify=False) as http:
            options = {name: client.pop(name) for name in ("timeout", "max_retries") if name in client}
            yield OpenAIModel(
                "any",
                client.pop("base_url", None),
                client.pop("api_key"),
                client_kwargs={"http_client": http, **options},
            )

    def build(self, model: OpenAIModel, members: Sequence[TeamMember]) -> list[ToolCallingAgent]:
        agents = [self._agent(model, member) for member in members]
        attach(agents[0])  # one line for all of them
        return agents

    async def run(self, app: list[ToolCallingAgent], task: str) -> None:
        await asyncio.to_thread(self.run_sync, app, task)

    async def stream(self, app: list[ToolCallingAgent], task: str) -> AsyncIterator[object]:
        for agent in app:
            steps = agent.run(task, stream=True)
            try:
                for step in steps:
                    yield step
            finally:
                with suppress(RuntimeError):  # its generator yields on its way out
                    steps.close()

    def run_sync(self, app: list[ToolCallingAgent], task: str) -> None:
        for agent in app:
            agent.run(task)

    def _agent(self, model: OpenAIModel, member: TeamMember) -> ToolCallingAgent:
        steps = [step for step in (find_marks(member.instructions).get("calls"), self.answer_tool) if step]
        with PARSING:
            tools = [tool(_plain(one)) for one in member.tools]
        return ToolCallingAgent(
            tools,
            model,
            name=member.name,
            instructions=member.instructions + mark(calls=",".join(steps), aloud=1),
            max_steps=4,
            verbosity_level=LogLevel.OFF,
        )


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """A tool as smolagents wants it: typed, each argument described, and not `async`."""

    def plain(question: str) -> str:
        if not inspect.iscoroutinefunction(function):
            return str(function(question))
        with ThreadPoolExecutor(1) as pool:
            return str(pool.submit(asyncio.run, function(question)).result())

    plain.__name__ = function.__name__
    plain.__doc__ = f"{function.__doc__}\n\nArgs:\n    question: What is asked."
    return plain


@pytest.fixture
def framework() -> Iterator[Framework]:
    yield Smolagents()
    detach()
