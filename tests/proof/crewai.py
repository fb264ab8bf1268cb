"""Plays of CrewAI: every shape of crew, in threads and in tasks of one loop."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

from crewai.tools import BaseTool
from langchain_openai import ChatOpenAI
from lightning_crewai import attach
from lightning_langgraph import LightningCallback
from openai import OpenAI

from lightning_core.tracing.scope import agent
from plugins.crewai.tests import apps
from plugins.crewai.tests.playing import enter, kick_off
from plugins.langgraph.tests import apps as graphs
from tests.proof import langgraph
from tests.proof.http import open_http
from tests.proof.play import Play, prompt

SHAPES = {
    apps.sequential: "sequential, with tools",
    apps.hierarchical: "hierarchical, with its manager",
    apps.async_tasks: "async tasks",
    apps.parallel_tools: "agents and a crew inside tools",
    apps.flow: "Flow with parallel listeners",
}


@asynccontextmanager
async def plays() -> AsyncIterator[list[Play]]:
    """All plays; each run of a crew makes its own client."""
    async with open_http() as (http, ahttp):
        client = OpenAI(api_key="none", http_client=http, timeout=300)
        yield [*_plays(), _nested(langgraph.model(http, ahttp), client)]


def _plays() -> Iterator[Play]:
    for build, topology in SHAPES.items():
        calls = apps.CALLS[build]
        yield Play("CrewAI", topology, "kickoff", _in_thread(build), calls)
        yield Play("CrewAI", topology, "akickoff streamed", _on_loop(build), calls)


def _in_thread(build: apps.Build) -> Any:
    def run(rollout: str) -> None:
        kick_off(attach(build(apps.Kit(rollout))))

    return run


def _on_loop(build: apps.Build) -> Any:
    async def run(rollout: str) -> None:
        await enter(attach(build(apps.Kit(rollout, stream=True))), "akickoff")

    return run


class Consult(BaseTool):
    """A tool that does whatever it was given to do."""

    name: str = "consult"
    description: str = "Consult."
    work: Callable[[], None]

    def _run(self) -> str:
        self.work()
        return "consulted"


def _nested(llm: ChatOpenAI, client: OpenAI) -> Play:
    graph = graphs.chain(llm, False, "first", "second").with_config(callbacks=[LightningCallback()])

    def run(rollout: str) -> None:
        def work() -> None:
            graph.invoke(langgraph.given(rollout))
            with agent("block"):
                messages: Any = prompt(rollout, "block", nonce=uuid.uuid4().hex)
                client.chat.completions.create(model="any", messages=messages)

        host = apps.Kit(rollout).agent("host", calls="consult", tools=[Consult(work=work)])
        kick_off(attach(host))

    calls = {"host": 2, "first": 1, "second": 1, "block": 1}
    return Play("nested", "CrewAI tool > LangGraph, agent block", "kickoff", run, calls)
