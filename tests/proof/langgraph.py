"""Plays of LangGraph: every shape of graph by each of its four entrances."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
from lightning_langgraph import LightningCallback

from lightning_core.testing.truth import mark
from plugins.langgraph.tests import apps
from tests.proof.http import open_http
from tests.proof.play import Play

ENTRANCES = ("invoke", "stream", "ainvoke", "astream")
COMPASS = {"north": 1, "east": 1, "south": 1, "west": 1, "join": 1}
SHAPES = {
    apps.fan_out: ("fan-out by Send", {"plan": 1, "work": 5, "merge": 1}),
    apps.nested: ("nested subgraphs", {**COMPASS, "caller": 2, "first": 1, "agent2": 1}),
    apps.boss_with_tools: (
        "agents and a graph as tools",
        {"boss": 3, "librarian": 1, "clerk": 2, "look_up": 1, "summarise": 1},
    ),
    apps.same_names: (
        "own nodes called agent and model",
        {"agent": 2, "model": 1, "helper": 1, "writer": 1},
    ),
    apps.supervisor: ("supervisor", {"supervisor": 3, "maths": 1, "search": 1}),
    apps.swarm: ("swarm", {"alice": 1, "bob": 1}),
}


@asynccontextmanager
async def plays() -> AsyncIterator[list[Play]]:
    """All plays, on one model shared by all rollouts."""
    async with open_http() as (http, ahttp):
        yield list(_plays(model(http, ahttp)))


def model(http: Any, ahttp: Any) -> ChatOpenAI:
    return ChatOpenAI(model="any", api_key="none", http_client=http, http_async_client=ahttp, timeout=300)


def _plays(llm: ChatOpenAI) -> Iterator[Play]:
    for entrance in ENTRANCES:
        aio = entrance.startswith("a")
        for build, (topology, calls) in SHAPES.items():
            yield Play("LangGraph", topology, entrance, entering(build(llm, aio), entrance), calls)
        failing = apps.chain(llm, aio, "write", "check", fail=1)
        yield Play(
            "LangGraph",
            "a 500, then a reply",
            entrance,
            entering(failing, entrance),
            {"write": 1, "check": 1},
        )


def entering(graph: Any, entrance: str) -> Any:
    graph = graph.with_config(callbacks=[LightningCallback()])

    def run(rollout: str) -> None:
        if entrance == "invoke":
            graph.invoke(given(rollout))
        else:
            for _ in graph.stream(given(rollout), stream_mode="messages"):
                pass

    async def arun(rollout: str) -> None:
        if entrance == "ainvoke":
            await graph.ainvoke(given(rollout))
        else:
            async for _ in graph.astream(given(rollout), stream_mode="messages"):
                pass

    return arun if entrance.startswith("a") else run


def given(rollout: str) -> dict[str, Any]:
    """Returns the initial state of every graph here."""
    return {"rollout": rollout, "messages": [HumanMessage(mark(rollout=rollout))]}
