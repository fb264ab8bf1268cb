"""Calls are named without a line in the app: `lightning_install` attaches all, while rollouts run."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from lightning_core.plugins import load_plugins
from lightning_core.runner.tagging import tagging
from lightning_core.testing.server import GatewayDouble, serving
from lightning_core.tracing.headers import decode_name
from lightning_core.tracing.scope import Scope, rollout_scope
from tests.proof.http import open_http


@pytest.fixture
def gateway() -> Iterator[GatewayDouble]:
    with serving() as server, tagging(load_plugins()):
        yield server


def callers(server: GatewayDouble) -> Counter[str]:
    return Counter(decode_name(seen.headers["x-lightning-agent"]) for seen in server.seen)


def in_rollout(server: GatewayDouble) -> Any:
    return rollout_scope(Scope("r1", 1, server.url, "token"))


def test_a_graph_without_the_callback_inside_a_tool_of_another_framework_has_its_own_names(
    gateway: GatewayDouble,
) -> None:
    agents = pytest.importorskip("agents")
    openai = pytest.importorskip("openai")
    from plugins.langgraph.tests import apps as graphs
    from plugins.openai_agents.tests import apps as crews
    from tests.proof import langgraph

    async def run() -> None:
        async with open_http() as (http, ahttp):
            graph = graphs.chain(langgraph.model(http, ahttp), True, "first", "second")

            @agents.function_tool  # type: ignore[untyped-decorator]
            async def look() -> str:
                """Look."""
                await graph.ainvoke(langgraph.given("r1"))
                return "looked"

            model = agents.OpenAIResponsesModel("any", openai.AsyncOpenAI(api_key="none", http_client=ahttp))
            host = crews.member(model, "host", {"calls": "look"}, tools=[look])
            with in_rollout(gateway):
                config = agents.RunConfig(tracing_disabled=True)
                await agents.Runner.run(host, "Do it.", context="r1", run_config=config)

    asyncio.run(run())
    assert callers(gateway) == {"host": 2, "first": 1, "second": 1}


@pytest.mark.filterwarnings("ignore:Resolved model mismatch")
def test_a_team_of_autogen_needs_no_attach(gateway: GatewayDouble) -> None:
    pytest.importorskip("autogen_agentchat")
    from plugins.autogen.tests import apps as teams
    from tests.proof import autogen

    async def run() -> None:
        async with open_http() as (_, ahttp):
            with in_rollout(gateway):
                await teams.tools(teams.Kit("r1", autogen.model(ahttp))).run(task="go")

    asyncio.run(run())
    assert callers(gateway) == teams.CALLS[teams.tools]


@pytest.mark.filterwarnings(r"ignore::DeprecationWarning:crewai\.")
def test_a_crew_needs_no_attach(gateway: GatewayDouble) -> None:
    pytest.importorskip("crewai")
    from plugins.crewai.tests import apps as crews
    from plugins.crewai.tests.playing import kick_off

    with in_rollout(gateway):
        kick_off(crews.hierarchical(crews.Kit("r1")))
    assert callers(gateway) == crews.CALLS[crews.hierarchical]


def test_a_callback_that_the_app_passes_all_the_same_reports_no_tool_twice(gateway: GatewayDouble) -> None:
    from langchain_core.messages import AIMessage
    from langchain_core.tools import tool
    from langgraph.graph import START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode
    from lightning_langgraph import LightningCallback

    @tool
    def look() -> str:
        """Look."""
        return "seen"

    def ask(state: MessagesState) -> Any:
        call = {"name": "look", "args": {}, "id": "c1"}
        return {"messages": [AIMessage(content="", tool_calls=[call])]}

    inner = StateGraph(MessagesState)
    inner.add_node("ask", ask)
    inner.add_node("look", ToolNode([look]))
    inner.add_edge(START, "ask")
    inner.add_edge("ask", "look")
    passed = inner.compile().with_config(callbacks=[LightningCallback()])
    outer = StateGraph(MessagesState)
    outer.add_node("around", lambda state: passed.invoke(state))
    outer.add_edge(START, "around")
    scope = Scope("r1", 1, gateway.url, "token")
    with rollout_scope(scope):
        outer.compile().invoke({"messages": []})
        passed.invoke({"messages": []})
    assert len(scope.noticed()[1]) == 2  # one run of the tool each time


def test_all_is_taken_back_when_rollouts_end() -> None:
    from langchain_core.tracers import context

    before = list(context._configure_hooks)
    with tagging(load_plugins()):
        assert len(context._configure_hooks) == len(before) + 1
    assert context._configure_hooks == before
