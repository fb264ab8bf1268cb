"""The laws that every adapter obeys."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
from google.adk.agents import LlmAgent, RunConfig
from google.adk.agents.run_config import StreamingMode
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai import types
from lightning_google_adk import attach, detach

from lightning_core.testing.adapter_laws import *  # noqa: F403
from lightning_core.testing.conformance import *  # noqa: F403
from lightning_core.testing.conformance import Framework, TeamMember


class GoogleADK(Framework):
    """One agent after the other."""

    plugin = "google_adk"
    modules = ("google",)

    @asynccontextmanager
    async def open_model(self, **client: Any) -> AsyncIterator[LiteLlm]:
        if "base_url" in client:
            client["api_base"] = client.pop("base_url")
        yield LiteLlm("openai/any", **client)

    def build(self, model: LiteLlm, members: Sequence[TeamMember]) -> list[LlmAgent]:
        agents = [
            LlmAgent(name=one.name, model=model, instruction=one.instructions, tools=list(one.tools))
            for one in members
        ]
        attach(agents[0])  # one line for all of them
        return agents

    async def run(self, app: list[LlmAgent], task: str) -> None:
        async for _ in self._events(app, task, StreamingMode.NONE):
            pass

    def stream(self, app: list[LlmAgent], task: str) -> AsyncIterator[object]:
        return self._events(app, task, StreamingMode.SSE)

    def run_sync(self, app: list[LlmAgent], task: str) -> None:
        asyncio.get_event_loop().run_until_complete(self.run(app, task))

    async def _events(self, app: list[LlmAgent], task: str, mode: StreamingMode) -> AsyncIterator[object]:
        message = types.Content(role="user", parts=[types.Part(text=task)])
        for agent in app:
            runner = InMemoryRunner(agent, app_name="app")
            session = await runner.session_service.create_session(app_name="app", user_id="user")
            events = runner.run_async(
                user_id="user",
                session_id=session.id,
                new_message=message,
                run_config=RunConfig(streaming_mode=mode),
            )
            async with aclosing(events):
                async for event in events:
                    yield event


@pytest.fixture
def framework() -> Iterator[Framework]:
    yield GoogleADK()
    detach()
