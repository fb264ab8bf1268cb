"""A text-to-SQL agent: write a query, run it, check the result, and rewrite the query when it failed.

    graph = build_graph()
    state = graph.invoke({"question": "How many boats have speed above 40?", "database": "harbour.sqlite"})
    print(state["sql"], state["result"])

The database is opened read-only. The model is the one named by SQL_MODEL, or the one given to `build_graph`.
"""

import os
import re
from collections.abc import Callable
from typing import Any, NotRequired, TypedDict

from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import RunnableLambda
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from pydantic import SecretStr

from examples.sql.execution import Row, describe_schema, open_database, run_query
from examples.sql.prompts import Messages, check_prompt, rewrite_prompt, write_prompt

MAX_REWRITES = 2
"""Second thoughts after a first query; a third has not been worth its price."""


class State(TypedDict):
    """State that the nodes share. `question` and `database` (a path) come in, the rest is filled on the
    way."""

    question: str
    database: str
    schema: NotRequired[str]
    sql: NotRequired[str]
    result: NotRequired[list[Row] | None]
    feedback: NotRequired[str]
    verdict: NotRequired[str]
    rewrites: NotRequired[int]


Update = dict[str, Any]
Graph = CompiledStateGraph[State, None, State, State]


def default_llm() -> ChatOpenAI:
    """The model named by SQL_MODEL, at the endpoint of OPENAI_BASE_URL when that is set."""
    return ChatOpenAI(
        model=os.environ.get("SQL_MODEL", "gpt-5-mini"),
        api_key=SecretStr(os.environ.get("OPENAI_API_KEY", "none")),
        max_completion_tokens=64,
    )


def build_graph(llm: BaseChatModel | None = None) -> Graph:
    """The compiled graph; it runs with `invoke` and with `ainvoke`."""
    model = llm or default_llm()
    graph = StateGraph(State)
    graph.add_node("read_schema", read_schema)
    graph.add_node("write_query", _agent("write_query", model, _ask_to_write, _take_first))
    graph.add_node("execute", execute)
    graph.add_node("check_query", _agent("check_query", model, _ask_to_check, _take_verdict))
    graph.add_node("rewrite_query", _agent("rewrite_query", model, _ask_to_rewrite, _take_rewrite))
    graph.add_edge(START, "read_schema")
    graph.add_edge("read_schema", "write_query")
    graph.add_edge("write_query", "execute")
    graph.add_edge("execute", "check_query")
    graph.add_conditional_edges("check_query", next_step, ["rewrite_query", END])
    graph.add_edge("rewrite_query", "execute")
    return graph.compile()


def read_schema(state: State) -> Update:
    """Describe the tables of the database."""
    with open_database(state["database"]) as connection:
        return {"schema": describe_schema(connection)}


def execute(state: State) -> Update:
    """Run the current query."""
    with open_database(state["database"]) as connection:
        outcome = run_query(connection, state["sql"])
    return {"result": outcome.rows, "feedback": outcome.feedback}


def next_step(state: State) -> str:
    """Rewrite when the check asks for it and rewrites are left."""
    wanted = "rewrite" in state["verdict"].lower()
    return "rewrite_query" if wanted and state["rewrites"] < MAX_REWRITES else END


def clean_sql(reply: str) -> str:
    """The query in a reply, without a Markdown fence or a closing semicolon."""
    fenced = re.search(r"```(?:sql\w*)?\s*(.*?)```", reply, re.DOTALL | re.IGNORECASE)
    return (fenced.group(1) if fenced else reply).strip().rstrip(";").strip()


def _agent(
    name: str,
    model: BaseChatModel,
    ask: Callable[[State], Messages],
    take: Callable[[State, str], Update],
) -> RunnableLambda[State, Update]:
    """A node that asks the model and takes its reply into the state, for `invoke` and `ainvoke`."""

    def call(state: State) -> Update:
        return take(state, str(model.invoke(ask(state)).text))

    async def acall(state: State) -> Update:
        reply = await model.ainvoke(ask(state))
        return take(state, str(reply.text))

    return RunnableLambda(call, afunc=acall, name=name)


def _ask_to_write(state: State) -> Messages:
    return write_prompt(state["schema"], state["question"])


def _take_first(state: State, reply: str) -> Update:
    return {"sql": clean_sql(reply), "rewrites": 0}


def _ask_to_check(state: State) -> Messages:
    return check_prompt(state["question"], state["sql"], state["feedback"])


def _take_verdict(state: State, reply: str) -> Update:
    return {"verdict": reply.strip()}


def _ask_to_rewrite(state: State) -> Messages:
    return rewrite_prompt(state["schema"], state["question"], state["sql"], state["feedback"])


def _take_rewrite(state: State, reply: str) -> Update:
    return {"sql": clean_sql(reply), "rewrites": state["rewrites"] + 1}
