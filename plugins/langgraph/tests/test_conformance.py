"""The laws that every adapter obeys."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from lightning_langgraph import LightningCallback
from openai import DefaultAsyncHttpxClient, DefaultHttpxClient

from lightning_core.testing.conformance import *  # noqa: F403
from lightning_core.testing.conformance import Framework, TeamMember


class LangGraph(Framework):
    """Ready-made agents as the nodes of a graph, one after the other."""

    plugin = "langgraph"
    modules = ("langchain", "langchain_core", "langgraph", "langsmith")

    @asynccontextmanager
    async def open_model(self, **client: Any) -> AsyncIterator[ChatOpenAI]:
        with DefaultHttpxClient(verify=False) as http:
            async with DefaultAsyncHttpxClient(verify=False) as ahttp:
                yield ChatOpenAI(model="any", http_client=http, http_async_client=ahttp, **client)

    def build(self, model: ChatOpenAI, members: Sequence[TeamMember]) -> Any:
        graph = StateGraph(MessagesState)
        names = [member.name for member in members]
        for before, member in zip([START, *names], members, strict=False):
            graph.add_node(member.name, self._agent(model, member))
            graph.add_edge(before, member.name)
        return graph.compile().with_config(callbacks=[LightningCallback()])

    async def run(self, app: Any, task: str) -> object:
        return await app.ainvoke({"messages": [("user", task)]})

    async def stream(self, app: Any, task: str) -> AsyncIterator[object]:
        async for item in app.astream({"messages": [("user", task)]}, stream_mode="messages"):
            yield item

    def run_sync(self, app: Any, task: str) -> object:
        return app.invoke({"messages": [("user", task)]})

    def _agent(self, model: ChatOpenAI, member: TeamMember) -> Any:
        tools = list(member.tools)
        return create_agent(model, tools, system_prompt=member.instructions, name=member.name)


@pytest.fixture
def framework() -> Framework:
    return LangGraph()
