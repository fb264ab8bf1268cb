"""Laws of LlamaIndex alone: handoffs, agents in tools, workflows of the app's own, and detaching."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from lightning_llama_index import attach, detach
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.llms.openai_like import OpenAILike
from openai import DefaultAsyncHttpxClient

from lightning_core.plugins import load_plugins
from lightning_core.records.types import UNNAMED, ToolEvent
from lightning_core.testing.readme import run_example
from lightning_core.testing.server import GatewayDouble, serving
from lightning_core.tracing.openai_sdk import instrument
from lightning_core.tracing.scope import Scope, rollout_scope
from plugins.llama_index.tests.apps import CALLS, Build, Kit, enter, handoffs, look_up

ROLLOUTS = 8


@pytest.fixture
def gateway() -> Iterator[GatewayDouble]:
    plugins = load_plugins(["llama_index"])
    with serving() as server, instrument(plugins.who):
        yield server
    detach()


@pytest.fixture
async def llm() -> AsyncIterator[OpenAILike]:
    async with DefaultAsyncHttpxClient(verify=False) as http:
        yield OpenAILike(
            "any", api_key="none", is_chat_model=True, is_function_calling_model=True, async_http_client=http
        )


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("build", CALLS, ids=lambda build: build.__name__)
async def test_every_call_is_named_and_many_rollouts_never_mix(
    gateway: GatewayDouble, llm: OpenAILike, build: Build, stream: bool
) -> None:
    async def one(rollout: str) -> None:
        app = attach(build(Kit(rollout, llm, stream)))
        with rollout_scope(Scope(rollout, 1, gateway.url, "token")):
            await enter(app)

    await asyncio.gather(*(one(f"r{index}") for index in range(ROLLOUTS)))
    assert gateway.mistakes() == []
    assert gateway.agents() == {name: count * ROLLOUTS for name, count in CALLS[build].items()}


async def test_a_handoff_and_a_tool_are_reported_by_their_agents(
    gateway: GatewayDouble, llm: OpenAILike
) -> None:
    with rollout_scope(Scope("r1", 1, gateway.url, "token")) as scope:
        await enter(attach(handoffs(Kit("r1", llm))))
    assert {event.name: event.agent for event in scope.seen if isinstance(event, ToolEvent)} == {
        "handoff": "triage",
        "look_up": "sql",
    }


async def test_an_unknown_tool_is_told(gateway: GatewayDouble, llm: OpenAILike) -> None:
    agent = attach(Kit("r1", llm).agent("writer", {"calls": "nothing"}, tools=[look_up]))
    with rollout_scope(Scope("r1", 1, gateway.url, "token")) as scope:
        await agent.run(user_msg="Do it.")
    assert gateway.agents() == {"writer": 2}
    [event] = [event for event in scope.seen if isinstance(event, ToolEvent)]
    assert (event.name, event.agent, event.error_type) == ("nothing", "writer", "unknown_tool")


async def test_a_run_goes_on_unnamed_where_it_is_taken_back(gateway: GatewayDouble, llm: OpenAILike) -> None:
    detach()
    original = FunctionAgent.run_agent_step
    agent = attach(attach(Kit("r1", llm).agent("writer", tools=[look_up])))
    with rollout_scope(Scope("r1", 1, gateway.url, "token")):
        await agent.run(user_msg="Do it.")
        assert FunctionAgent.run_agent_step is not original
        detach()
        detach()
        assert FunctionAgent.run_agent_step is original
        await agent.run(user_msg="Do it.")
    assert gateway.agents() == {"writer": 1, UNNAMED: 1}


def test_the_readmes_example_runs(gateway: GatewayDouble) -> None:
    readme = Path(__file__).parents[1] / "README.md"
    question = "<<calls=ask_clerk>>"
    assert run_example(readme, gateway, ["desk"], question=question, answer="it is done") == 1.0
    assert gateway.agents() == {"desk": 2, "clerk": 1}
