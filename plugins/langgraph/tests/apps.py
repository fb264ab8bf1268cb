"""Graphs as users write them. Every prompt says which rollout and agent it truly belongs to."""

from __future__ import annotations

import operator
import uuid
from collections.abc import Callable
from itertools import pairwise
from typing import Annotated, Any, TypedDict

from langchain.agents import create_agent
from langchain.tools import ToolRuntime, tool
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import create_react_agent
from langgraph.types import Send
from langgraph_supervisor import create_supervisor
from langgraph_swarm import create_handoff_tool, create_swarm

from lightning_core.testing.truth import mark

Graph = Any
Node = Callable[..., Any]


class State(TypedDict, total=False):
    rollout: str
    done: Annotated[list[str], operator.add]


def prompt(state: State, name: str, **marks: object) -> list[HumanMessage]:
    nonce = uuid.uuid4().hex
    return [HumanMessage(mark(rollout=state["rollout"], agent=name, nonce=nonce, **marks))]


def asking(llm: ChatOpenAI, name: str, aio: bool, **marks: object) -> Node:
    """A node that calls the model once."""

    def node(state: State) -> State:
        llm.invoke(prompt(state, name, **marks))
        return {"done": [name]}

    async def anode(state: State) -> State:
        await llm.ainvoke(prompt(state, name, **marks))
        return {"done": [name]}

    return anode if aio else node


def chain(llm: ChatOpenAI, aio: bool, *names: str, **marks: object) -> Graph:
    """Node after node."""
    graph = StateGraph(State)
    for before, name in zip((START, *names), names, strict=False):
        graph.add_node(name, asking(llm, name, aio, **marks))
        graph.add_edge(before, name)
    return graph.compile()


def parallel(llm: ChatOpenAI, aio: bool) -> Graph:
    """Four nodes at once, a fifth after them."""
    graph = StateGraph(State)
    graph.add_node("join", asking(llm, "join", aio))
    for name in ("north", "east", "south", "west"):
        graph.add_node(name, asking(llm, name, aio, slow=0.01))
        graph.add_edge(START, name)
        graph.add_edge(name, "join")
    return graph.compile()


def fan_out(llm: ChatOpenAI, aio: bool) -> Graph:
    """Five executions of one node by `Send`, all at once, between two others."""
    graph = StateGraph(State)
    graph.add_node("plan", asking(llm, "plan", aio))
    graph.add_node("work", asking(llm, "work", aio, slow=0.01))
    graph.add_node("merge", asking(llm, "merge", aio))
    graph.add_edge(START, "plan")
    graph.add_conditional_edges("plan", lambda state: [Send("work", state) for _ in range(5)], ["work"])
    graph.add_edge("work", "merge")
    return graph.compile()


def nested(llm: ChatOpenAI, aio: bool) -> Graph:
    """A subgraph as a node, beside a node that calls before, inside and after a subgraph of its own."""
    inner = parallel(llm, aio)

    def caller(state: State) -> State:
        llm.invoke(prompt(state, "caller"))
        inner.invoke(state)
        llm.invoke(prompt(state, "caller"))
        return {"done": ["caller"]}

    async def acaller(state: State) -> State:
        await llm.ainvoke(prompt(state, "caller"))
        await inner.ainvoke(state)
        await llm.ainvoke(prompt(state, "caller"))
        return {"done": ["caller"]}

    graph = StateGraph(State)
    graph.add_node("deep", chain(llm, aio, "first", "agent2"))
    graph.add_node("caller", acaller if aio else caller)
    graph.add_edge(START, "deep")
    graph.add_edge(START, "caller")
    graph.add_edge("caller", END)
    return graph.compile()


def same_names(llm: ChatOpenAI, aio: bool) -> Graph:
    """Nodes of the app's own called as the parts of ready-made agents are, beside such agents."""
    graph = StateGraph(MessagesState)
    for outer, inner in (("researcher", "agent"), ("coder", "model")):
        loop = StateGraph(MessagesState)
        loop.add_node(inner, answering(llm, inner, aio))
        loop.add_edge(START, inner)
        graph.add_node(outer, loop.compile())
    graph.add_node("helper", create_react_agent(llm, [], prompt=mark(agent="helper")))
    graph.add_node("writer", create_agent(llm, [], system_prompt=mark(agent="writer")))
    graph.add_node("agent", answering(llm, "agent", aio))
    for before, after in pairwise([START, "researcher", "coder", "helper", "writer", "agent"]):
        graph.add_edge(before, after)
    return graph.compile()


def answering(llm: ChatOpenAI, name: str, aio: bool) -> Any:
    """As `asking`, in a state of messages."""

    def node(state: MessagesState) -> dict[str, Any]:
        return {"messages": [llm.invoke([*state["messages"][:1], HumanMessage(mark(agent=name))])]}

    async def anode(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await llm.ainvoke([*state["messages"][:1], HumanMessage(mark(agent=name))])]}

    return anode if aio else node


def nameless(llm: ChatOpenAI, aio: bool) -> Graph:
    """`create_agent` without a name, in no graph."""
    return create_agent(llm, [], system_prompt=mark(agent="agent"))


def alone(llm: ChatOpenAI, aio: bool) -> Graph:
    """`create_react_agent` with a name, in no graph."""
    return create_react_agent(llm, [], prompt=mark(agent="researcher"), name="researcher")


def helper_as_tool(llm: ChatOpenAI, aio: bool) -> Graph:
    """`create_react_agent` whose tool runs another one."""
    helper = create_react_agent(llm, [], prompt=mark(agent="helper"), name="helper")
    script = mark(agent="chief", calls="ask_helper")
    return create_react_agent(llm, [tool_of(helper, "ask_helper", aio)], prompt=script, name="chief")


def boss_with_tools(llm: ChatOpenAI, aio: bool) -> Graph:
    """`create_agent` with two sub-agents and a graph as tools, all three called at once."""
    librarian = worker(llm, "librarian")
    clerk = worker(llm, "clerk")
    plain = chain(llm, aio, "look_up", "summarise")
    tools = [
        tool_of(librarian, "ask_librarian", aio),
        tool_of(clerk, "ask_clerk", aio),
        tool_of(plain, "search", aio),
    ]
    script = mark(agent="boss", calls="ask_librarian+ask_clerk+search,ask_clerk")
    return create_agent(llm, tools, system_prompt=script, name="boss")


def teams_as_tools(llm: ChatOpenAI, aio: bool) -> Graph:
    """`create_agent` whose tool runs a graph: one node is an agent, another one calls an agent."""
    leaf, sub = worker(llm, "leaf"), worker(llm, "sub")

    def caller(state: MessagesState) -> dict[str, Any]:
        sub.invoke({"messages": state["messages"][:1]})
        llm.invoke([*state["messages"][:1], HumanMessage(mark(agent="caller"))])
        return {}

    async def acaller(state: MessagesState) -> dict[str, Any]:
        await sub.ainvoke({"messages": state["messages"][:1]})
        await llm.ainvoke([*state["messages"][:1], HumanMessage(mark(agent="caller"))])
        return {}

    graph = StateGraph(MessagesState)
    graph.add_node("leaf", leaf)
    graph.add_node("caller", acaller if aio else caller)
    graph.add_edge(START, "leaf")
    graph.add_edge(START, "caller")
    tools = [tool_of(graph.compile(), "ask_team", aio)]
    return create_agent(llm, tools, system_prompt=mark(agent="boss", calls="ask_team+ask_team"), name="boss")


def worker(llm: ChatOpenAI, name: str, *tools: Any, **marks: object) -> Graph:
    return create_agent(llm, list(tools), system_prompt=mark(agent=name, **marks), name=name)


def tool_of(graph: Graph, name: str, aio: bool) -> Any:
    def given(runtime: ToolRuntime) -> dict[str, Any]:
        question = runtime.state["messages"][0]
        return {"messages": [question], "rollout": _rollout(question.content)}

    def ask(runtime: ToolRuntime) -> str:
        graph.invoke(given(runtime))
        return "asked"

    async def aask(runtime: ToolRuntime) -> str:
        await graph.ainvoke(given(runtime))
        return "asked"

    return tool(name, description="Ask.")(aask if aio else ask)


def _rollout(text: str) -> str:
    return text.removeprefix("<<rollout=").removesuffix(">>")


def supervisor(llm: ChatOpenAI, aio: bool) -> Graph:
    """langgraph-supervisor: two workers, one after the other."""
    script = mark(agent="supervisor", calls="transfer_to_maths,transfer_to_search")
    workers = [worker(llm, "maths"), worker(llm, "search")]
    return create_supervisor(workers, model=llm, prompt=script).compile()


def swarm(llm: ChatOpenAI, aio: bool) -> Graph:
    """langgraph-swarm: alice hands over to bob."""
    alice = worker(llm, "alice", create_handoff_tool(agent_name="bob"), calls="transfer_to_bob")
    return create_swarm([alice, worker(llm, "bob")], default_active_agent="alice").compile()


def agent_in_node(llm: ChatOpenAI, aio: bool) -> Graph:
    """A node that runs a named agent, and calls by itself afterwards; an unnamed agent as another node."""
    sql = worker(llm, "sql")

    def node(state: MessagesState) -> dict[str, Any]:
        sql.invoke({"messages": state["messages"]})
        llm.invoke([*state["messages"][:1], HumanMessage(mark(agent="node"))])
        return {}

    async def anode(state: MessagesState) -> dict[str, Any]:
        await sql.ainvoke({"messages": state["messages"]})
        await llm.ainvoke([*state["messages"][:1], HumanMessage(mark(agent="node"))])
        return {}

    graph = StateGraph(MessagesState)
    graph.add_node("node", anode if aio else node)
    graph.add_node("nameless", create_agent(llm, [], system_prompt=mark(agent="nameless")))
    graph.add_edge(START, "node")
    graph.add_edge("node", "nameless")
    return graph.compile()
