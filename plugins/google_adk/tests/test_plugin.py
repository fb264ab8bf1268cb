"""Laws of ADK alone: agents as tools, transfers, workflows of agents, tools, and detaching."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from lightning_google_adk import attach, detach

from lightning_core.plugins import load_plugins
from lightning_core.records.types import ToolEvent
from lightning_core.testing.readme import run_example
from lightning_core.testing.server import GatewayDouble, serving
from lightning_core.tracing.openai_sdk import instrument
from lightning_core.tracing.scope import Scope, rollout_scope
from plugins.google_adk.tests.apps import CALLS, Build, Kit, enter, look_up, transfer

ROLLOUTS = 8


@pytest.fixture
def gateway() -> Iterator[GatewayDouble]:
    plugins = load_plugins(["google_adk"])
    with serving() as server, instrument(plugins.who):
        yield server
    detach()


@pytest.fixture
def model() -> LiteLlm:
    return LiteLlm("openai/any", api_key="none")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("build", CALLS, ids=lambda build: build.__name__)
async def test_every_call_is_named_and_many_rollouts_never_mix(
    gateway: GatewayDouble, model: LiteLlm, build: Build, stream: bool
) -> None:
    async def one(rollout: str) -> None:
        app = attach(build(Kit(rollout, model)))
        with rollout_scope(Scope(rollout, 1, gateway.url, "token")):
            await enter(app, stream=stream)

    await asyncio.gather(*(one(f"r{index}") for index in range(ROLLOUTS)))
    assert gateway.mistakes() == []
    assert gateway.agents() == {name: count * ROLLOUTS for name, count in CALLS[build].items()}


async def test_a_transfer_and_a_tool_are_reported_by_their_agents(
    gateway: GatewayDouble, model: LiteLlm
) -> None:
    with rollout_scope(Scope("r1", 1, gateway.url, "token")) as scope:
        await enter(attach(transfer(Kit("r1", model))), stream=True)
    assert {event.name: event.agent for event in scope.seen if isinstance(event, ToolEvent)} == {
        "transfer_to_agent": "triage",
        "look_up": "sql",
    }


async def test_an_unknown_tool_is_told_and_an_error_that_is_answered_is_reported_once(
    gateway: GatewayDouble, model: LiteLlm
) -> None:
    def fails() -> str:
        """Fail."""
        raise TimeoutError("too late")

    agent = Kit("r1", model).agent(
        "writer",
        {"calls": "nothing+fails"},
        tools=[look_up, fails],
        on_tool_error_callback=lambda **about: {"error": "sorry"},
    )
    with rollout_scope(Scope("r1", 1, gateway.url, "token")) as scope:
        await enter(attach(agent), stream=False)
    assert gateway.agents() == {"writer": 2}
    events = [event for event in scope.seen if isinstance(event, ToolEvent)]
    assert {(event.name, event.error_type) for event in events} == {
        ("nothing", "unknown_tool"),
        ("fails", "raised"),
    }
    assert len(events) == 2


def test_attach_takes_an_agent_and_a_runner(model: LiteLlm) -> None:
    plugins = load_plugins(["google_adk"])
    for target in (agent := Kit("r1", model).agent("writer"), InMemoryRunner(agent, app_name="app")):
        assert plugins.attach(target) is target
    detach()


def test_the_readmes_example_runs(gateway: GatewayDouble) -> None:
    readme = Path(__file__).parents[1] / "README.md"
    question = "<<calls=clerk>>"
    assert run_example(readme, gateway, ["desk"], question=question, answer="it is done") == 1.0
    assert gateway.agents() == {"desk": 2, "clerk": 1}
