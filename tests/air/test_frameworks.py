"""AIR through each framework's plugin: a tool that raises, or is not there, or is asked in the wrong way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from openai import AsyncOpenAI, DefaultAsyncHttpxClient, DefaultHttpxClient

import tests.examples.conftest  # noqa: F401  # CrewAI, once imported, keeps its files where this says
from lightning_core.gateway.upstream import ChatRequest
from tests.air.playing import ASKED, EXPECTED, REFUSING, TOOL, check, play
from tests.gateway.scripted import Line

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


def ask_in_words(request: ChatRequest, choice: int) -> Line:
    """Ask for the tool that the task says, in the words that CrewAI asks for, and answer what came of it."""
    texts = [str(message["content"]) for message in request.messages]
    if any(message["role"] == "assistant" for message in request.messages):
        return Line("Thought: I know.\nFinal Answer: done")
    name, arguments = ASKED[next(name for name in ASKED if any(f"<{name}>" in text for text in texts))]
    return Line(f"Thought: I need it.\nAction: {name}\nAction Input: {arguments}")


@pytest.mark.filterwarnings(r"ignore::DeprecationWarning:crewai\.")
@pytest.mark.filterwarnings("ignore:Cannot set an attribute on 'crewai.rag':ImportWarning")
async def test_a_tool_that_crewai_s_agents_ask_for_in_words_is_the_fault_of_the_call_that_did() -> None:
    from crewai import LLM
    from crewai.tools import tool
    from lightning_crewai import attach, detach

    from plugins.crewai.tests.apps import Kit

    tools = [tool(TOOL)(look_up), tool(REFUSING)(refuse)]

    async def app(question: str) -> object:
        headers = {"connection": "close"}
        llm = LLM(model="o1", api_key="none", default_headers=headers)  # for CrewAI it has no tool calls
        kit = Kit(rollout="any", models=[llm])
        crew = attach(kit.crew(kit.agent("clerk", tools=tools, max_iter=4)))
        crew.tasks[0].description = question
        return await asyncio.to_thread(crew.kickoff)

    tasks = [name for name in EXPECTED if name != "garbled"]  # CrewAI mends JSON that is cut
    rewards, calls = await play(app, tasks, plugins=["crewai"], says=ask_in_words)
    detach()
    assert {name: [reward.source for reward in given] for name, given in rewards.items()} == {
        name: EXPECTED[name] for name in tasks
    }
    for name, given in rewards.items():
        assert len(calls[name]) == 2
        assert [(reward.call_id, reward.agent) for reward in given] == [(calls[name][0].id, "clerk")] * len(
            given
        )


@pytest.mark.filterwarnings(r"ignore::DeprecationWarning:crewai\.")
@pytest.mark.filterwarnings("ignore:Cannot set an attribute on 'crewai.rag':ImportWarning")
@pytest.mark.parametrize("framework", [langgraph, autogen, openai_agents, crewai])
async def test_each_fault_is_found_once_at_the_call_that_made_it(framework: Any) -> None:
    async with framework() as app:
        rewards, calls = await play(app, plugins=[framework.__name__])
    check(rewards, calls, "clerk")
