"""A manager that writes code, plans, and sends a tool-calling agent of its team to search.

After huggingface/smolagents, docs/source/en/examples/multiagents.md: a CodeAgent with `managed_agents`, a
`planning_interval` and imports, over a ToolCallingAgent "web_search_agent" with a description and
`max_steps=10`. The manager, which has no name there, has one here.
"""

from __future__ import annotations

import asyncio

from lightning_smolagents import attach
from smolagents import CodeAgent, LogLevel, OpenAIModel, ToolCallingAgent, tool

from tests.apps.stage import App, Role


@tool
def visit_webpage(url: str) -> str:
    """Visits a webpage at the given URL and returns its content as a markdown string.

    Args:
        url: The URL of the webpage to visit.
    """
    return "Training takes 20 GW."


def build_agent() -> CodeAgent:
    model = OpenAIModel("gpt-4o")
    web_agent = ToolCallingAgent(
        tools=[visit_webpage],
        model=model,
        max_steps=10,
        name="web_search_agent",
        description="Runs web searches for you.",
        instructions="You only search.",
        verbosity_level=LogLevel.OFF,
    )
    return CodeAgent(
        tools=[],
        model=model,
        name="manager_agent",
        managed_agents=[web_agent],
        planning_interval=5,
        additional_authorized_imports=["time", "numpy"],
        instructions="You only manage.",
        verbosity_level=LogLevel.OFF,
    )


async def run() -> str:
    agent = attach(build_agent())  # the one line
    return str(await asyncio.to_thread(agent.run, "How much power does training need?"))


APP = App(
    "Web team",
    (
        Role(
            "web_search_agent",
            "You only search.",
            [[("visit_webpage", {"url": "x"})], [("final_answer", {"answer": "20 GW"})]],
        ),
        Role(
            "manager_agent",
            "You only manage.",
            [
                "<code> report = web_search_agent(task='find it') </code>",
                "<code> final_answer('20 GW') </code>",
            ],
        ),
        Role("manager_agent", "world expert at analyzing a situation", ["1. Search. <end_plan>"]),
    ),
    run,
    "20 GW",
    {"manager_agent": 3, "web_search_agent": 2},
)
