"""Laws of Pydantic AI alone: agents in tools and output functions, tools that wait, and detaching."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from lightning_pydantic_ai import attach, detach
from openai import AsyncOpenAI
from pydantic_ai import Agent, DeferredToolRequests, ModelRetry
from pydantic_ai.exceptions import CallDeferred
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.providers.openai import OpenAIProvider

import lightning_core
from lightning_core.plugins import load_plugins
from lightning_core.records.types import UNNAMED, ToolEvent
from lightning_core.testing.readme import run_example
from lightning_core.testing.server import GatewayDouble, serving
from lightning_core.testing.truth import mark
from lightning_core.tracing.openai_sdk import instrument
from lightning_core.tracing.scope import Scope, rollout_scope

ROLLOUTS = 16


@pytest.fixture
def gateway() -> Iterator[GatewayDouble]:
    plugins = load_plugins(["pydantic_ai"])
    with serving() as server, instrument(plugins.who):
        yield server
    detach()


@pytest.fixture(params=[OpenAIChatModel, OpenAIResponsesModel], ids=["chat", "responses"])
async def model(request: pytest.FixtureRequest) -> AsyncIterator[OpenAIChatModel | OpenAIResponsesModel]:
    async with AsyncOpenAI(api_key="none") as client:
        yield request.param("any", provider=OpenAIProvider(openai_client=client))


def look_up(word: str) -> str:
    """Look it up."""
    return word


async def test_agents_in_tools_of_agents_are_named(
    gateway: GatewayDouble, model: OpenAIChatModel | OpenAIResponsesModel
) -> None:
    async def one(rollout: str) -> None:
        clerk = Agent(model, name="clerk", instructions=mark(rollout=rollout, agent="clerk"))
        script = mark(rollout=rollout, agent="desk", calls="ask_clerk+ask_clerk,look_up")
        desk = Agent(model, name="desk", instructions=script, tools=[look_up])

        @desk.tool_plain
        async def ask_clerk(question: str) -> str:
            return (await clerk.run(question)).output

        attach(desk)
        with rollout_scope(Scope(rollout, 1, gateway.url, "token")):
            async with desk.run_stream("Do it.") as answer:
                await answer.get_output()

    await asyncio.gather(*(one(f"r{index}") for index in range(ROLLOUTS)))
    assert gateway.mistakes() == []
    assert gateway.agents() == {"desk": 3 * ROLLOUTS, "clerk": 2 * ROLLOUTS}


async def test_an_output_function_hands_over(
    gateway: GatewayDouble, model: OpenAIChatModel | OpenAIResponsesModel
) -> None:
    expert = Agent(model, name="expert", instructions=mark(rollout="r1", agent="expert"))

    async def ask_expert(question: str) -> str:
        """Hand the question over."""
        return (await expert.run(question)).output

    router = Agent(
        model,
        name="router",
        instructions=mark(rollout="r1", agent="router", calls="final_result"),
        output_type=ask_expert,
    )
    attach(router)
    with rollout_scope(Scope("r1", 1, gateway.url, "token")):
        assert (await router.run("Do it.")).output == "it is done"
    assert gateway.mistakes() == []
    assert gateway.agents() == {"router": 1, "expert": 1}


def test_the_tool_of_an_agent_without_a_name_runs_and_is_reported() -> None:
    [agent] = [lightning_core.attach(Agent(TestModel(), tools=[look_up]))]
    scope = Scope("r1", 1, "http://127.0.0.1:9", "token")
    with rollout_scope(scope):
        asyncio.run(agent.run("Do it.", infer_name=False))
    detach()
    [event] = [event for event in scope.seen if isinstance(event, ToolEvent)]
    assert (event.name, event.agent, event.error) == ("look_up", UNNAMED, None)


async def test_agents_in_a_mapping_are_named_by_their_keys(
    gateway: GatewayDouble, model: OpenAIChatModel | OpenAIResponsesModel
) -> None:
    agents = {key: Agent(model, instructions=mark(rollout="r1", agent=key)) for key in ("north", "south")}
    attach(agents["north"])
    with rollout_scope(Scope("r1", 1, gateway.url, "token")):
        await agents["north"].run("Do it.")
        await asyncio.gather(*(agents[key].run("Do it.") for key in agents))
    assert gateway.mistakes() == []
    assert gateway.agents() == {"north": 2, "south": 1}


def test_an_agent_that_two_mappings_call_differently_has_no_name() -> None:
    agents = {key: Agent(TestModel()) for key in ("north", "south")}
    turned = {"east": agents["north"], "south": agents["south"], "agent": Agent(TestModel())}
    kept = {"agent": turned.pop("agent"), "model": TestModel()}
    attach(agents["north"])
    for key in agents:
        asyncio.run(agents[key].run("Do it."))
    asyncio.run(kept["agent"].run("Do it."))  # type: ignore[union-attr]
    detach()
    assert [agent.name for agent in agents.values()] == [None, "south"]
    assert [agent.name for agent in turned.values()] == [None, "south"]
    assert kept["agent"].name is None  # type: ignore[union-attr]


def test_a_retry_is_an_error_and_a_deferred_call_has_not_run() -> None:
    def fussy(word: str) -> str:
        raise ModelRetry("another word")

    def later(word: str) -> str:
        raise CallDeferred

    def errors_of(agent: Agent[None, object]) -> list[str | None]:
        scope = Scope("r1", 1, "http://127.0.0.1:9", "token")
        with rollout_scope(scope):
            asyncio.run(attach(agent).run("Do it."))
        return [event.error for event in scope.seen if isinstance(event, ToolEvent)]

    deferred: Agent[None, object] = Agent(
        TestModel(), name="a", tools=[later], output_type=[str, DeferredToolRequests]
    )
    assert errors_of(deferred) == []
    with pytest.raises(Exception, match="exceeded"):
        errors_of(Agent(TestModel(), name="a", tools=[fussy], output_type=str))
    detach()


def test_the_readmes_example_runs(gateway: GatewayDouble) -> None:
    readme = Path(__file__).parents[1] / "README.md"
    question = "<<calls=ask_clerk>>"
    assert run_example(readme, gateway, ["desk"], question=question, answer="it is done") == 1.0
    assert gateway.agents() == {"desk": 2, "clerk": 1}
