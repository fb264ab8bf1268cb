"""AIR through each framework's plugin: a tool that raises, or is not there, or is asked in the wrong way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from openai import AsyncOpenAI, DefaultAsyncHttpxClient, DefaultHttpxClient

import tests.examples.conftest  # noqa: F401  # CrewAI, once imported, keeps its files where this says
from tests.air.playing import REFUSING, TOOL, check, play

App = Callable[[str], Awaitable[object]]


def look_up(word: str) -> str:
    """Look a word up."""
    return f"{word} is a word"


def refuse(word: str) -> str:
    """Never say anything."""
    raise LookupError(word)


@asynccontextmanager
async def langgraph() -> AsyncIterator[App]:
    from langchain.agents import create_agent
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI
    from lightning_langgraph import LightningCallback
    from pydantic import SecretStr

    async with DefaultAsyncHttpxClient() as ahttp:
        with DefaultHttpxClient() as http:
            llm = ChatOpenAI(
                model="any", api_key=SecretStr("none"), http_client=http, http_async_client=ahttp
            )
            made: Any = create_agent(llm, [tool(look_up), tool(refuse)], name="clerk")
            graph = made.with_config(callbacks=[LightningCallback()])
            yield lambda question: graph.ainvoke({"messages": [("user", question)]})


@asynccontextmanager
async def autogen() -> AsyncIterator[App]:
    from autogen_agentchat.agents import AssistantAgent
    from lightning_autogen import attach, detach

    from plugins.autogen.tests.playing import open_client

    async with open_client() as client:

        def app(question: str) -> Any:
            clerk = AssistantAgent("clerk", client, tools=[look_up, refuse], max_tool_iterations=3)
            return attach(clerk).run(task=question)

        yield app
    detach()


@asynccontextmanager
async def openai_agents() -> AsyncIterator[App]:
    from agents import Agent, OpenAIChatCompletionsModel, RunConfig, Runner, function_tool
    from lightning_openai_agents import attach, uninstall

    async with DefaultAsyncHttpxClient() as http:
        model = OpenAIChatCompletionsModel("any", AsyncOpenAI(api_key="none", http_client=http))
        tools = [function_tool(look_up), function_tool(refuse)]
        agent = attach(Agent(name="clerk", model=model, tools=[*tools]))
        yield lambda question: Runner.run(agent, question, run_config=RunConfig(tracing_disabled=True))
    uninstall()


@asynccontextmanager
async def crewai() -> AsyncIterator[App]:
    from crewai.tools import tool
    from lightning_crewai import attach, detach

    from plugins.crewai.tests.apps import Kit

    tools = [tool(TOOL)(look_up), tool(REFUSING)(refuse)]

    async def app(question: str) -> object:
        kit = Kit(rollout="any")
        clerk = kit.agent("clerk", tools=tools, max_iter=4)
        crew = attach(kit.crew(clerk))
        crew.tasks[0].description = question
        return await asyncio.to_thread(crew.kickoff)

    yield app
    detach()


@pytest.mark.filterwarnings(r"ignore::DeprecationWarning:crewai\.")
@pytest.mark.filterwarnings("ignore:Cannot set an attribute on 'crewai.rag':ImportWarning")
@pytest.mark.parametrize("framework", [langgraph, autogen, openai_agents, crewai])
async def test_each_fault_is_found_once_at_the_call_that_made_it(framework: Any) -> None:
    async with framework() as app:
        rewards, calls = await play(app, plugins=[framework.__name__])
    check(rewards, calls, "clerk")
