"""An SQL agent as a graph of nodes, of which one must call its tool and one must check the query.

After langchain-ai/docs, src/oss/langgraph/sql-agent.mdx: nodes list_tables, call_get_schema
(`tool_choice="any"`), get_schema, generate_query, check_query (`tool_choice="any"`, and its reply takes the
place of the query), run_query.
"""

from __future__ import annotations

import sqlite3
from typing import Any, Literal

from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from lightning_langgraph import LightningCallback

from tests.apps.stage import App, Role

GENERATE = "You are an agent designed to interact with a SQL database. Write a correct query."
CHECK = "You are a SQL expert with a strong attention to detail. Double check the query."


@tool
def sql_db_schema(table_names: str) -> str:
    """The schema of these tables."""
    return "CREATE TABLE genre (name TEXT, tracks INTEGER)"


@tool
def sql_db_query(query: str) -> str:
    """The result of a query."""
    with sqlite3.connect(":memory:") as database:
        database.executescript(
            "CREATE TABLE genre (name TEXT, tracks INTEGER); INSERT INTO genre VALUES ('Rock', 9)"
        )
        rows = str(database.execute(query).fetchall())
    database.close()
    return rows


def build_graph() -> Any:
    model = ChatOpenAI(model="gpt-4.1")

    def list_tables(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage("Available tables: genre")]}

    def call_get_schema(state: MessagesState) -> dict[str, Any]:
        return {"messages": [model.bind_tools([sql_db_schema], tool_choice="any").invoke(state["messages"])]}

    def generate_query(state: MessagesState) -> dict[str, Any]:
        bound = model.bind_tools([sql_db_query])
        return {"messages": [bound.invoke([{"role": "system", "content": GENERATE}, *state["messages"]])]}

    def check_query(state: MessagesState) -> dict[str, Any]:
        asked = state["messages"][-1]
        query = {"role": "user", "content": asked.tool_calls[0]["args"]["query"]}
        bound = model.bind_tools([sql_db_query], tool_choice="any")
        reply = bound.invoke([{"role": "system", "content": CHECK}, query])
        reply.id = asked.id
        return {"messages": [reply]}

    def should_continue(state: MessagesState) -> Literal["__end__", "check_query"]:
        return "check_query" if state["messages"][-1].tool_calls else END

    graph = StateGraph(MessagesState)
    for node in (list_tables, call_get_schema, generate_query, check_query):
        graph.add_node(node)
    graph.add_node(ToolNode([sql_db_schema], name="get_schema"), "get_schema")
    graph.add_node(ToolNode([sql_db_query], name="run_query"), "run_query")
    graph.add_edge(START, "list_tables")
    graph.add_edge("list_tables", "call_get_schema")
    graph.add_edge("call_get_schema", "get_schema")
    graph.add_edge("get_schema", "generate_query")
    graph.add_conditional_edges("generate_query", should_continue)
    graph.add_edge("check_query", "run_query")
    graph.add_edge("run_query", "generate_query")
    return graph.compile()


def run() -> str:
    graph = build_graph().with_config(callbacks=[LightningCallback()])  # the one line
    question = {"role": "user", "content": "Which genre has the longest tracks?"}
    for step in graph.stream({"messages": [question]}, stream_mode="values"):
        last = step["messages"][-1]
    return str(last.content)


QUERY = [("sql_db_query", {"query": "SELECT name FROM genre ORDER BY tracks DESC"})]
APP = App(
    "SQL agent",
    (
        Role("generate_query", GENERATE, [QUERY, "Rock has."]),
        Role("check_query", CHECK, [QUERY]),
        Role("call_get_schema", "Available tables", [[("sql_db_schema", {"table_names": "genre"})]]),
    ),
    run,
    "Rock has.",
    {"call_get_schema": 1, "generate_query": 2, "check_query": 1},
)
