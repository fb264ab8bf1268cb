"""Laws of this framework alone: orchestrations, agents as tools, both APIs, tools, and detaching."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_framework import Agent
from agent_framework.openai import OpenAIChatClient, OpenAIChatCompletionClient
from lightning_agent_framework import attach, detach
from openai import AsyncOpenAI
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from lightning_core.plugins import load_plugins
from lightning_core.records.types import UNNAMED, ToolEvent
from lightning_core.testing.readme import run_example
from lightning_core.testing.server import GatewayDouble, serving
from lightning_core.testing.truth import mark
from lightning_core.tracing.openai_sdk import instrument
from lightning_core.tracing.scope import Scope, rollout_scope
from plugins.agent_framework.tests.apps import CALLS, Build, Kit, enter

ROLLOUTS = 8


@pytest.fixture
def gateway() -> Iterator[GatewayDouble]:
    plugins = load_plugins(["agent_framework"])
    with serving() as server, instrument(plugins.who):
        yield server
    detach()


@pytest.fixture(params=[OpenAIChatCompletionClient, OpenAIChatClient], ids=["chat", "responses"])
async def client(request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    async with AsyncOpenAI(api_key="none") as openai:
        yield request.param("any", async_client=openai)


@pytest.mark.parametrize("stream", [False, True], ids=["run", "streamed"])
@pytest.mark.parametrize("build", CALLS, ids=lambda build: build.__name__)
async def test_every_call_is_named_and_many_rollouts_never_mix(
    gateway: GatewayDouble, client: Any, build: Build, stream: bool
) -> None:
    async def one(rollout: str) -> None:
        app = attach(build(Kit(rollout, client)))
        with rollout_scope(Scope(rollout, 1, gateway.url, "token")):
            await enter(app, stream=stream)

    await asyncio.gather(*(one(f"r{index}") for index in range(ROLLOUTS)))
    assert gateway.mistakes() == []
    assert gateway.agents() == {name: count * ROLLOUTS for name, count in CALLS[build].items()}


async def test_refused_arguments_are_told_from_a_tool_that_raised(gateway: GatewayDouble) -> None:
    def count(number: int) -> int:
        """Count."""
        return number

    def fails() -> str:
        """Fail."""
        raise TimeoutError("too late")

    async with AsyncOpenAI(api_key="none") as openai:
        client = OpenAIChatCompletionClient("any", async_client=openai)
        script = mark(rollout="r1", agent=UNNAMED, calls="count+fails")  # it asks for `count("asked")`
        agent = attach(Agent(client, script, tools=[count, fails]))
        with rollout_scope(Scope("r1", 1, gateway.url, "token")) as scope:
            await agent.run("Do it.")
    events = {event.name: event for event in scope.seen if isinstance(event, ToolEvent)}
    assert gateway.mistakes() == []
    assert {name: event.error_type for name, event in events.items()} == {
        "count": "invalid_arguments",
        "fails": "raised",
    }
    assert events["fails"].error == "TimeoutError: too late"
    assert {event.agent for event in events.values()} == {UNNAMED}


async def test_when_detached_the_frameworks_own_spans_still_name_its_agents(
    gateway: GatewayDouble, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", TracerProvider(shutdown_on_exit=False))
    agent = attach(Kit("r1", client).agent("writer"))
    detach()
    with rollout_scope(Scope("r1", 1, gateway.url, "token")):
        await enter(agent, stream=False)
    assert gateway.agents() == {"writer": 1}


def test_the_readmes_example_runs(gateway: GatewayDouble) -> None:
    readme = Path(__file__).parents[1] / "README.md"
    question = "<<calls=clerk>>"
    assert run_example(readme, gateway, ["desk"], question=question, answer="it is done") == 1.0
    assert gateway.agents() == {"desk": 2, "clerk": 1}
