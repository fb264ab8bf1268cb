"""Two agents that hand over to each other, and remember who spoke last.

After langchain-ai/langgraph-swarm-py, README.md: `create_swarm` of "Alice" and "Bob",
`create_handoff_tool`, an in-memory checkpointer, two turns of one thread, the second of which goes on with
the agent of the first.
"""

from __future__ import annotations

from typing import Any

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph_swarm import create_handoff_tool, create_swarm
from lightning_langgraph import LightningCallback

from tests.apps.stage import App, Role


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def build_graph() -> Any:
    model = ChatOpenAI(model="gpt-4o")
    alice = create_agent(
        model,
        [add, create_handoff_tool(agent_name="Bob")],
        system_prompt="You are Alice, an addition expert.",
        name="Alice",
    )
    bob = create_agent(
        model,
        [create_handoff_tool(agent_name="Alice", description="Transfer to Alice, she can help with math")],
        system_prompt="You are Bob, you speak like a pirate.",
        name="Bob",
    )
    return create_swarm([alice, bob], default_active_agent="Alice").compile(checkpointer=InMemorySaver())


def run() -> str:
    graph = build_graph().with_config(callbacks=[LightningCallback()])  # the one line
    thread = {"configurable": {"thread_id": "1"}}
    graph.invoke({"messages": [{"role": "user", "content": "i'd like to speak to Bob"}]}, thread)
    result = graph.invoke({"messages": [{"role": "user", "content": "what's 5 + 7?"}]}, thread)
    return str(result["messages"][-1].content)


APP = App(
    "Swarm",
    (
        Role(
            "Alice", "You are Alice,", [[("transfer_to_bob", {})], [("add", {"a": 5, "b": 7})], "It is 12."]
        ),
        Role("Bob", "You are Bob,", ["Ahoy!", [("transfer_to_alice", {})]]),
    ),
    run,
    "It is 12.",
    {"Alice": 3, "Bob": 2},
)
