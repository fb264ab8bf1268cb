"""Blocks, bare clients, graphs, pools and agents in and around agents: the innermost scope names the call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypedDict

import pytest
from crewai import Agent, Crew, Task
from crewai.tools import BaseTool
from crewai.types.streaming import CrewStreamingOutput
from langgraph.graph import END, START, StateGraph
from lightning_crewai import attach, detach
from openai import OpenAI
from pydantic import BaseModel

from lightning_core.plugins import load_plugins
from lightning_core.records.types import UNNAMED
from lightning_core.testing.server import GatewayDouble, serving
from lightning_core.testing.truth import mark
from lightning_core.tracing.openai_sdk import instrument
from lightning_core.tracing.scope import agent, rollout_scope
from plugins.crewai.tests import apps
from plugins.crewai.tests.apps import Kit
from plugins.crewai.tests.playing import ENTRANCES, Entrance, enter, expect, play, scope_at

Ask = Callable[[str], None]
KIT = Kit("r1")


@pytest.fixture
def both() -> Iterator[GatewayDouble]:
    """With the plugins of CrewAI and LangGraph."""
    with serving() as server, instrument(load_plugins(["crewai", "langgraph"]).who):
        yield server
    detach()


@pytest.fixture
def ask() -> Iterator[Ask]:
    """A bare client's call in rollout r1, which truly belongs to the agent named."""
    with OpenAI(api_key="none") as client:

        def ask(name: str) -> None:
            message: Any = {"role": "user", "content": mark(rollout="r1", agent=name)}
            client.chat.completions.create(model="any", messages=[message])

        yield ask


class Act(BaseTool):
    """A tool that does what it is given."""

    name: str = "act"
    description: str = "Act."
    body: Callable[[], Any]

    def _run(self) -> str:
        self.body()
        return "done"


def acting(body: Callable[[], Any], kit: Kit = KIT, name: str = "writer") -> Agent:
    """An agent that calls the tool once, between two calls of the model."""
    return kit.agent(name, calls="act", tools=[Act(body=body)])


@pytest.mark.parametrize("entrance", ENTRANCES)
async def test_a_block_or_an_agent_in_a_tool_wins_and_a_block_around_the_crew_does_not(
    gateway: GatewayDouble, ask: Ask, entrance: Entrance
) -> None:
    def body() -> None:
        ask("writer")
        with agent("block"):
            ask("block")
            KIT.crew(KIT.agent("helper")).kickoff()
            ask("block")
        KIT.agent("leaf").kickoff("Do it.")
        ask("writer")

    with rollout_scope(scope_at(gateway)), agent("around"):
        ask("around")
        await enter(attach(KIT.crew(acting(body))), entrance)
        ask("around")
    expect(gateway, {"writer": 4, "block": 2, "helper": 1, "leaf": 1, "around": 2}, rollouts=1)


class State(TypedDict):
    done: bool


def test_a_graph_in_a_tool_wins_until_it_ends_and_a_crew_in_its_node_wins_in_turn(
    both: GatewayDouble, ask: Ask
) -> None:
    def node(state: State) -> State:
        ask("planner")
        KIT.crew(KIT.agent("helper")).kickoff()
        ask("planner")
        return {"done": True}

    builder = StateGraph(State)
    builder.add_node("planner", node)
    builder.add_edge(START, "planner")
    builder.add_edge("planner", END)
    from lightning_langgraph import LightningCallback

    graph = builder.compile().with_config(callbacks=[LightningCallback()])

    def body() -> None:
        ask("writer")
        graph.invoke({"done": False})
        ask("writer")

    with rollout_scope(scope_at(both)):
        attach(KIT.crew(acting(body))).kickoff()
    expect(both, {"writer": 4, "planner": 2, "helper": 1}, rollouts=1)


def test_a_model_called_with_no_agent_is_whoever_is_around(gateway: GatewayDouble) -> None:
    def call(name: str) -> None:
        KIT.llm().call([{"role": "user", "content": KIT.prompt(name)}])

    with rollout_scope(scope_at(gateway)):
        call(UNNAMED)
        attach(KIT.crew(acting(lambda: call("writer")))).kickoff()
        call(UNNAMED)
        with agent("block"):
            call("block")
    expect(gateway, {"writer": 3, UNNAMED: 2, "block": 1}, rollouts=1)


@pytest.mark.parametrize("entrance", ["kickoff_async", "akickoff"])
async def test_once_a_coworker_is_done_the_calls_are_those_of_the_agent_that_asked(
    gateway: GatewayDouble, ask: Ask, entrance: Entrance
) -> None:
    boss = KIT.agent(
        "boss",
        calls="delegate_work_to_coworker,act",
        tools=[Act(body=lambda: ask("boss"))],
        allow_delegation=True,
    )
    crew = Crew(agents=[boss, KIT.agent(apps.COWORKER)], tasks=[apps.work(boss)])
    with rollout_scope(scope_at(gateway)):
        await enter(attach(crew), entrance)
        ask(UNNAMED)
    expect(gateway, {"boss": 4, apps.COWORKER: 1, UNNAMED: 1}, rollouts=1)


class Answer(BaseModel):
    number: int


@pytest.mark.parametrize("entrance", ENTRANCES)
async def test_turning_an_answer_into_an_object_is_the_agents_too(
    gateway: GatewayDouble, ask: Ask, entrance: Entrance
) -> None:
    """The test server never gives an object, so CrewAI asks three times, and then it fails."""
    described = type("Described", (Answer,), {"__doc__": KIT.prompt("writer")})
    writer = KIT.agent("writer", tools=[apps.look_up])
    task = apps.work(writer, output_pydantic=described)
    crew = attach(Crew(agents=[writer], tasks=[task]))
    with rollout_scope(scope_at(gateway)):
        with pytest.raises(Exception, match="convert text into a Pydantic model"):
            await enter(crew, entrance)
        ask(UNNAMED)
    expect(gateway, {"writer": 4, UNNAMED: 1}, rollouts=1)


@pytest.mark.filterwarnings("ignore:function callbacks cannot be serialized:UserWarning")
def test_guardrails_and_callbacks_of_a_task_are_the_agents_and_an_error_leaves_no_name(
    gateway: GatewayDouble, ask: Ask
) -> None:
    def guard(output: Any):  # type: ignore[no-untyped-def]  # CrewAI reads what is said of the answer
        ask("writer")
        return True, output

    def broken(output: Any) -> None:
        ask("writer")
        raise KeyError("mine")

    writer = KIT.agent("writer")
    task = apps.work(writer, guardrail=guard, callback=broken)
    with rollout_scope(scope_at(gateway)):
        with pytest.raises(KeyError, match="mine"):
            attach(Crew(agents=[writer], tasks=[task])).kickoff()
        ask(UNNAMED)
    expect(gateway, {"writer": 3, UNNAMED: 1}, rollouts=1)


def test_what_is_done_between_the_chunks_of_a_stream_is_not_the_agents(
    gateway: GatewayDouble, ask: Ask
) -> None:
    with rollout_scope(scope_at(gateway)):
        outcome = attach(Kit("r1", stream=True).crew(Kit("r1").agent("writer"))).kickoff()
        assert isinstance(outcome, CrewStreamingOutput)
        chunks = 0
        for _ in outcome:
            ask(UNNAMED)
            chunks += 1
    assert chunks > 2
    expect(gateway, {"writer": 1, UNNAMED: chunks}, rollouts=1)


async def test_a_tools_own_pool_is_named_after_its_agent(gateway: GatewayDouble) -> None:
    with OpenAI(api_key="none") as client, ThreadPoolExecutor(8) as shared:

        def build(kit: Kit) -> Any:
            message: Any = {"role": "user", "content": kit.prompt("writer")}

            def call(_: int) -> None:
                client.chat.completions.create(model="any", messages=[message])

            return kit.crew(acting(lambda: list(shared.map(call, range(3))), kit))

        await play(build, gateway, "kickoff")
    expect(gateway, {"writer": 5})


def test_agents_of_classes_made_before_and_after_attaching_are_named_by_their_tasks(
    gateway: GatewayDouble, ask: Ask
) -> None:
    def make() -> type[Agent]:
        class Own(Agent):
            def execute_task(self, task: Task, context: Any = None, tools: Any = None) -> Any:
                ask(self.role)
                with agent("inner"):
                    ask("inner")
                    return "done"

        return Own

    before = make()
    attach(KIT.crew(KIT.agent("any")))
    with rollout_scope(scope_at(gateway)):
        for own in (before, make()):
            worker = own(role="own", goal="Help.", backstory="None.", llm=KIT.llm())
            KIT.crew(worker).kickoff()
        before(role="alone", goal="Help.", backstory="None.", llm=KIT.llm()).execute_task(apps.work())
    expect(gateway, {"own": 2, "inner": 3, "alone": 1}, rollouts=1)
