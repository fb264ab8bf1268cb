"""Laws of smolagents alone: managed agents, code, planning, and the state after detaching."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from lightning_smolagents import attach, detach
from openai import DefaultHttpxClient
from smolagents import CodeAgent, LogLevel, OpenAIModel, ToolCallingAgent, tool

import lightning_core
from lightning_core.plugins import load_plugins
from lightning_core.records.types import UNNAMED, ToolEvent
from lightning_core.testing.readme import run_example
from lightning_core.testing.server import GatewayDouble, serving
from lightning_core.testing.truth import mark
from lightning_core.tracing.openai_sdk import instrument
from lightning_core.tracing.scope import Scope, rollout_scope

ROLLOUTS = 8


@pytest.fixture
def gateway() -> Iterator[GatewayDouble]:
    plugins = load_plugins(["smolagents"])
    with serving() as server, instrument(plugins.who):
        yield server
    detach()


@pytest.fixture
def model() -> Iterator[OpenAIModel]:
    with DefaultHttpxClient(verify=False) as http:
        yield OpenAIModel("any", api_key="none", client_kwargs={"http_client": http})


class Coding(OpenAIModel):
    """The double speaks in tool calls: this one says the same as code, as a model does for a `CodeAgent`."""

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        said = super().generate(*args, **kwargs)
        lines = [f"{call.function.name}('asked')  # {call.id}" for call in said.tool_calls or ()]
        said.content, said.tool_calls = (
            "<code>\n" + "\n".join(lines or ["final_answer('done')"]) + "\n</code>",
            None,
        )
        return said


def script(rollout: str, agent: str, *steps: str) -> str:
    return mark(rollout=rollout, agent=agent, calls=",".join([*steps, "final_answer"]), aloud=1)


def manager(model: OpenAIModel, rollout: str, **options: Any) -> ToolCallingAgent:
    """Asks two of its team at once, then answers."""
    team = [
        ToolCallingAgent(
            [],
            model,
            name=name,
            description="Helps.",
            instructions=script(rollout, name),
            verbosity_level=LogLevel.OFF,
        )
        for name in ("search", "read")
    ]
    instructions = script(rollout, "manager", "search+read")
    return ToolCallingAgent(
        [],
        model,
        name="manager",
        managed_agents=team,
        instructions=instructions,
        verbosity_level=LogLevel.OFF,
        **options,
    )


def test_managed_agents_make_their_own_calls_and_many_rollouts_never_mix(
    gateway: GatewayDouble, model: OpenAIModel
) -> None:
    def one(rollout: str) -> Scope:
        with rollout_scope(Scope(rollout, 1, gateway.url, "token")) as scope:
            attach(manager(model, rollout)).run("Do it.")
        return scope

    with ThreadPoolExecutor(ROLLOUTS) as pool:
        scopes = list(pool.map(one, [f"r{index}" for index in range(ROLLOUTS)]))
    assert gateway.mistakes() == []
    assert gateway.agents() == {"manager": 2 * ROLLOUTS, "search": ROLLOUTS, "read": ROLLOUTS}
    for scope in scopes:
        runs = {event.name: event.agent for event in scope.seen if isinstance(event, ToolEvent)}
        assert runs["search"] == runs["read"] == "manager"


def test_planning_is_the_agents_and_so_is_the_answer_after_too_many_steps(
    gateway: GatewayDouble, model: OpenAIModel
) -> None:
    with rollout_scope(Scope("r1", 1, gateway.url, "token")):
        agent = attach(manager(model, "r1", planning_interval=1))
        agent.run("Do it.", max_steps=1)
    # a plan, which the double writes in tool calls, one step, and the answer that it is asked for in the end
    assert gateway.agents() == {"manager": 3, "search": 1, "read": 1}


def test_what_the_code_of_a_code_agent_calls_stays_in_the_rollout(gateway: GatewayDouble) -> None:
    @tool
    def ask(question: str) -> str:
        """Ask a model.

        Args:
            question: What is asked.
        """
        prompt: Any = {"role": "user", "content": mark(rollout="r1", agent="coder")}
        return str(model.client.chat.completions.create(model="any", messages=[prompt]))

    with DefaultHttpxClient(verify=False) as http, rollout_scope(Scope("r1", 1, gateway.url, "token")):
        model = Coding("any", api_key="none", client_kwargs={"http_client": http})
        reader = ToolCallingAgent(
            [],
            OpenAIModel("any", api_key="none", client_kwargs={"http_client": http}),
            name="reader",
            description="Reads.",
            instructions=script("r1", "reader"),
            verbosity_level=LogLevel.OFF,
        )
        coder = CodeAgent(
            [ask],
            model,
            name="coder",
            managed_agents=[reader],
            instructions=mark(rollout="r1", agent="coder", calls="ask+reader"),
            verbosity_level=LogLevel.OFF,
        )
        assert lightning_core.attach(coder).run("Do it.") == "done"
    assert gateway.mistakes() == []
    assert gateway.agents() == {"coder": 3, "reader": 1}


def test_an_unknown_tool_is_told_and_an_agent_without_a_name_is_unnamed(
    gateway: GatewayDouble, model: OpenAIModel
) -> None:
    instructions = mark(rollout="r1", agent=UNNAMED, calls="nothing,final_answer", aloud=1)
    agent = ToolCallingAgent([], model, instructions=instructions, max_steps=2, verbosity_level=LogLevel.OFF)
    with rollout_scope(Scope("r1", 1, gateway.url, "token")) as scope:
        attach(agent).run("Do it.")
    assert gateway.agents() == {UNNAMED: 2}
    [event, _] = [event for event in scope.seen if isinstance(event, ToolEvent)]
    assert (event.name, event.agent, event.error_type) == ("nothing", UNNAMED, "unknown_tool")


def test_the_readmes_example_runs(gateway: GatewayDouble) -> None:
    readme = Path(__file__).parents[1] / "README.md"
    assert run_example(readme, gateway, ["desk"], question="Is it?", answer="it is done") == 1.0
    assert set(gateway.agents()) == {"desk"}
