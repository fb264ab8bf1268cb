"""Plays of frameworks inside one another, each shape as the next one out of it sees it."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from agents import Model, OpenAIResponsesModel, RunConfig, Runner, function_tool
from autogen_ext.models.openai import OpenAIChatCompletionClient
from langchain_openai import ChatOpenAI
from langgraph.graph import START, StateGraph
from lightning_autogen import attach as attach_team
from lightning_langgraph import LightningCallback
from lightning_openai_agents import attach as attach_agent
from openai import AsyncOpenAI

from lightning_core.tracing.scope import agent
from plugins.autogen.tests import apps as teams
from plugins.langgraph.tests import apps as graphs
from plugins.openai_agents.tests import apps as crews
from tests.proof import autogen, langgraph
from tests.proof.http import open_http
from tests.proof.langgraph import given
from tests.proof.play import Play, prompt


@asynccontextmanager
async def plays() -> AsyncIterator[list[Play]]:
    """All plays, on clients shared by all rollouts."""
    async with open_http() as (http, ahttp):
        bare = AsyncOpenAI(api_key="none", http_client=ahttp, timeout=300)
        parts = bare, langgraph.model(http, ahttp), autogen.model(ahttp), OpenAIResponsesModel("any", bare)
        yield [
            Play(
                "nested",
                "LangGraph node > OpenAI Agents, AutoGen, bare client",
                "ainvoke",
                _graph_outside(*parts),
                {"outer": 2, "triage": 1, "sql": 2, "review": 1, "solo": 1, "inside": 1},
            ),
            Play(
                "nested",
                "OpenAI Agents tool > LangGraph in an agent block",
                "run",
                _agent_outside(*parts),
                {"host": 2, "first": 1, "second": 1, "block": 1},
            ),
            Play(
                "nested",
                "AutoGen tool > OpenAI Agents > its tools",
                "run",
                _team_outside(*parts),
                {"thinker": 2, "triage": 1, "sql": 2, "review": 1},
            ),
        ]


async def _ask(bare: AsyncOpenAI, rollout: str, name: str) -> None:
    nonce = uuid.uuid4().hex
    await bare.chat.completions.create(model="any", messages=prompt(rollout, name, nonce=nonce))  # type: ignore[arg-type]


async def _run_agent(model: Model, rollout: str) -> None:
    agent = attach_agent(crews.handoffs(model))
    await Runner.run(agent, "Do it.", context=rollout, run_config=RunConfig(tracing_disabled=True))


def _graph_outside(
    bare: AsyncOpenAI, llm: ChatOpenAI, client: OpenAIChatCompletionClient, model: Model
) -> Any:
    async def node(state: graphs.State) -> graphs.State:
        rollout = state["rollout"]
        await llm.ainvoke(graphs.prompt(state, "outer"))
        await _run_agent(model, rollout)
        await attach_team(teams.alone(teams.Kit(rollout, client))).run(task="go")
        with agent("inside"):
            await _ask(bare, rollout, "inside")
        await _ask(bare, rollout, "outer")
        return {"done": ["outer"]}

    graph = StateGraph(graphs.State)
    graph.add_node("outer", node)
    graph.add_edge(START, "outer")
    compiled = graph.compile().with_config(callbacks=[LightningCallback()])

    async def run(rollout: str) -> None:
        with agent("around"):
            await compiled.ainvoke(given(rollout))

    return run


def _agent_outside(
    bare: AsyncOpenAI, llm: ChatOpenAI, client: OpenAIChatCompletionClient, model: Model
) -> Any:
    graph = graphs.chain(llm, True, "first", "second").with_config(callbacks=[LightningCallback()])

    async def run(rollout: str) -> None:
        @function_tool
        async def look() -> str:
            """Look."""
            with agent("block"):
                await graph.ainvoke(given(rollout))
                await _ask(bare, rollout, "block")
            return "looked"

        host = attach_agent(crews.member(model, "host", {"calls": "look"}, tools=[look]))
        await Runner.run(host, "Do it.", context=rollout, run_config=RunConfig(tracing_disabled=True))

    return run


def _team_outside(
    bare: AsyncOpenAI, llm: ChatOpenAI, client: OpenAIChatCompletionClient, model: Model
) -> Any:
    async def run(rollout: str) -> None:
        async def look() -> str:
            """Look."""
            await _run_agent(model, rollout)
            return "looked"

        kit = teams.Kit(rollout, client)
        thinker = kit.agent("thinker", tools=[look], calls="look", reflect_on_tool_use=True)
        await attach_team(thinker).run(task="go")

    return run
