"""An agent with a list of things to do, files of its own, and sub-agents that it calls by a tool.

After langchain-ai/deepagents, README.md and examples/deep_research: a main agent with the to-do middleware,
a virtual file system in its state, and a `task` tool that starts a sub-agent with a context of its own,
here two at once. Made of the middleware that LangChain itself has.
"""

from __future__ import annotations

from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import ModelCallLimitMiddleware, SummarizationMiddleware, TodoListMiddleware
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from lightning_langgraph import LightningCallback

from tests.apps.stage import App, Role


@tool
def internet_search(query: str) -> str:
    """Search the web."""
    return f"About {query}: much."


def build_graph() -> Any:
    model = ChatOpenAI(model="gpt-4o")
    files: dict[str, str] = {}
    subagents = {
        name: create_agent(model, [internet_search], name=name, system_prompt=prompt)
        for name, prompt in (
            ("research-agent", "You are a dedicated researcher."),
            ("critique-agent", "You are a dedicated editor."),
        )
    }

    @tool
    async def task(description: str, subagent_type: str) -> str:
        """Launch a sub-agent for a task of its own."""
        result = await subagents[subagent_type].ainvoke({"messages": [("user", description)]})
        return str(result["messages"][-1].content)

    @tool
    def write_file(file_path: str, content: str) -> str:
        """Write a file."""
        files[file_path] = content
        return f"Updated file {file_path}"

    return create_agent(
        model,
        [internet_search, write_file, task],
        name="deep-agent",
        system_prompt="You are an expert researcher. Delegate, then write a polished report.",
        middleware=[
            TodoListMiddleware(),
            SummarizationMiddleware(model, trigger=("tokens", 100_000)),
            ModelCallLimitMiddleware(run_limit=20),
        ],
    )


async def run() -> str:
    graph = build_graph().with_config(callbacks=[LightningCallback()])  # the one line
    result = await graph.ainvoke({"messages": [("user", "What is LangGraph?")]})
    return str(result["messages"][-1].content)


TODO = [{"content": "Research", "status": "in_progress"}, {"content": "Report", "status": "pending"}]
APP = App(
    "Deep agent",
    (
        Role(
            "deep-agent",
            "You are an expert researcher.",
            [
                [("write_todos", {"todos": TODO})],
                [
                    ("task", {"description": "Find out.", "subagent_type": "research-agent"}),
                    ("task", {"description": "Look at it.", "subagent_type": "critique-agent"}),
                ],
                [("write_file", {"file_path": "final_report.md", "content": "A library."})],
                "The report is written.",
            ],
        ),
        Role(
            "research-agent",
            "You are a dedicated researcher.",
            [[("internet_search", {"query": "it"})], "A library."],
        ),
        Role("critique-agent", "You are a dedicated editor.", ["Too short."]),
    ),
    run,
    "report is written",
    {"deep-agent": 4, "research-agent": 2, "critique-agent": 1},
)
