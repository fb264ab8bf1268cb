"""Libraries that run a graph inside a function: its calls are of the agent that called the function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
from langgraph.graph import START, StateGraph
from lightning_langgraph import LightningCallback
from pydantic import BaseModel

from lightning_core.testing.server import GatewayDouble
from lightning_core.testing.truth import mark
from lightning_core.tracing.scope import agent, rollout_scope
from plugins.langgraph.tests.apps import State
from plugins.langgraph.tests.playing import expect, play, scope_at

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # trustcall's own


class Profile(BaseModel):
    """Who somebody is."""

    name: str


@pytest.fixture
def extract(llm: ChatOpenAI) -> Callable[..., Any]:
    """Has trustcall read a profile; its model answers as the agent named."""
    trustcall = pytest.importorskip("trustcall")
    extractor = trustcall.create_extractor(llm, tools=[Profile], tool_choice="Profile")

    def run(rollout: str, name: str, **config: Any) -> Any:
        said = HumanMessage(mark(rollout=rollout, agent=name, calls="Profile"))
        return extractor.invoke({"messages": [said]}, config)

    return run


def graph_of(node: Callable[[State], None]) -> Any:
    return StateGraph(State).add_node("profile", node).add_edge(START, "profile").compile()


async def test_a_node_that_calls_trustcall_names_its_calls(
    gateway: GatewayDouble, extract: Callable[..., Any]
) -> None:
    graph = graph_of(lambda state: extract(state["rollout"], "profile") and None)
    await play(graph, gateway, "invoke")
    expect(gateway, {"profile": 1})


async def test_a_block_around_trustcall_names_its_calls(
    gateway: GatewayDouble, extract: Callable[..., Any]
) -> None:
    def node(state: State) -> None:
        with agent("reader"):
            assert extract(state["rollout"], "reader")["responses"] == [Profile(name="asked")]

    await play(graph_of(node), gateway, "invoke")
    expect(gateway, {"reader": 1})


def test_a_block_names_trustcalls_calls_outside_of_every_graph(
    gateway: GatewayDouble, llm: ChatOpenAI, extract: Callable[..., Any]
) -> None:
    with rollout_scope(scope_at(gateway)), agent("reader"):
        extract("r1", "reader", callbacks=[LightningCallback()])
    expect(gateway, {"reader": 1}, rollouts=1)


async def test_a_graph_of_the_apps_own_by_the_name_of_a_librarys_keeps_its_nodes_names(
    gateway: GatewayDouble, llm: ChatOpenAI
) -> None:
    def read(state: State) -> None:
        llm.invoke([HumanMessage(mark(rollout=state["rollout"], agent="extract"))])

    builder = StateGraph(State).add_node("extract", read).add_edge(START, "extract")
    await play(
        graph_of(lambda state: builder.compile(name="TrustCall").invoke(state) and None), gateway, "invoke"
    )
    expect(gateway, {"extract": 1})
