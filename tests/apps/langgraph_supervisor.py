"""A supervisor that hands work to a research and a math expert.

After langchain-ai/langgraph-supervisor-py, README.md: `create_supervisor` over ready-made agents
"math_expert" and "research_expert", `output_mode="last_message"`, tools that call one after the other.
"""

from __future__ import annotations

from typing import Any

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from langgraph_supervisor import create_supervisor
from lightning_langgraph import LightningCallback

from tests.apps.stage import App, Role


def add(a: float, b: float) -> float:
    """Add two numbers."""
    return a + b


def web_search(query: str) -> str:
    """Search the web."""
    return "Facebook (Meta) has 67,317 employees, Apple 164,000."


def build_graph() -> Any:
    model = ChatOpenAI(model="gpt-4o")
    math = create_agent(
        model, [add], name="math_expert", system_prompt="You are a math expert. One tool at a time."
    )
    research = create_agent(
        model,
        [web_search],
        name="research_expert",
        system_prompt="You are a world class researcher. Do no math.",
    )
    workflow = create_supervisor(
        [research, math],
        model=model,
        prompt="You are a team supervisor managing a research expert and a math expert.",
        output_mode="last_message",
    )
    return workflow.compile()


def run() -> str:
    graph = build_graph().with_config(callbacks=[LightningCallback()])  # the one line
    result = graph.invoke({"messages": [{"role": "user", "content": "How many people work at FAANG?"}]})
    return str(result["messages"][-1].content)


APP = App(
    "Supervisor",
    (
        Role(
            "supervisor",
            "You are a team supervisor",
            [[("transfer_to_research_expert", {})], [("transfer_to_math_expert", {})], "In all 231,317."],
        ),
        Role(
            "research_expert",
            "You are a world class researcher.",
            [[("web_search", {"query": "FAANG"})], "Found."],
        ),
        Role("math_expert", "You are a math expert.", [[("add", {"a": 67317, "b": 164000})], "231317"]),
    ),
    run,
    "231,317",
    {"supervisor": 3, "research_expert": 2, "math_expert": 2},
)
