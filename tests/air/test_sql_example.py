"""The SQL example's own queries, through the database's spans, to the calls that wrote them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from langchain_openai import ChatOpenAI
from lightning_langgraph import LightningCallback
from openai import DefaultAsyncHttpxClient
from opentelemetry.instrumentation.sqlite3 import SQLite3Instrumentor
from opentelemetry.sdk.trace import TracerProvider
from pydantic import SecretStr

from examples.sql.app import build_graph
from examples.sql.reward import execution_match
from lightning_core.dialects.upstream import ChatRequest
from lightning_core.stores.sqlite import MemoryStore
from lightning_core.tracing.otel import LightningSpanProcessor
from research.invalid_queries import Queries, invalid_queries
from tests.air.playing import play
from tests.gateway.scripted import Line

GOOD, BAD, WORSE = "SELECT name FROM boats", "SELECT nam FROM boats", "SELECT name FROM ships"
SCRIPTS = {
    "right": (GOOD, ""),
    "wrong": (f"{BAD};", f"```sql\n{GOOD};\n```"),
    "worse": (BAD, WORSE),
    "stubborn": (BAD, BAD),
}
"""Replies of the writer and then of the rewriter, twice if need be."""
NO_NAM, NO_SHIPS = f"no such column: nam: {BAD}", f"no such table: ships: {WORSE}"
EXPECTED = {
    "right": [],
    "wrong": [("write_query", "air:sql_error", NO_NAM)],
    "worse": [
        ("write_query", "air:sql_error", NO_NAM),
        ("rewrite_query", "air:sql_error", NO_SHIPS),
        ("rewrite_query", "air:sql_error", NO_SHIPS),
    ],
    "stubborn": [
        ("write_query", "air:sql_error", NO_NAM),
        ("rewrite_query", "air:sql_error", NO_NAM),
        ("rewrite_query", "air:sql_error", NO_NAM),
    ],
}


@pytest.fixture
def harbour(tmp_path: Path) -> str:
    path = tmp_path / "harbour.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE boats (name TEXT)")
        connection.execute("INSERT INTO boats VALUES ('ada')")
        connection.commit()
    return str(path)


@pytest.fixture
def instrumented() -> Iterator[None]:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(LightningSpanProcessor())
    SQLite3Instrumentor().instrument(tracer_provider=provider)
    yield
    SQLite3Instrumentor().uninstrument()


def say(request: ChatRequest, choice: int) -> Line:
    """The checker asks for another query after an error; the others follow the script of the question."""
    task, shown = (str(message["content"]) for message in request.messages)
    if task.startswith("Check"):
        return Line("rewrite" if "Result: Error" in shown else "ok")
    first, second = next(lines for name, lines in SCRIPTS.items() if f"<{name}>" in shown)
    return Line(first if task.startswith("Write") else second)


async def test_a_refused_query_costs_each_call_that_wrote_it(harbour: str, instrumented: None) -> None:
    store = MemoryStore()
    async with DefaultAsyncHttpxClient() as http:
        llm = ChatOpenAI(model="any", api_key=SecretStr("none"), http_async_client=http)
        graph = build_graph(llm).with_config(callbacks=[LightningCallback()])

        async def app(question: str) -> None:
            state = await graph.ainvoke({"question": question, "database": harbour})
            execution_match(state["sql"], GOOD, harbour)

        trained = ("write_query", "rewrite_query")
        rewards, calls = await play(app, SCRIPTS, ["langgraph"], say, store, trained)
    found = {
        name: [(r.agent, r.source, (r.reason or "").partition(" (")[0]) for r in rewards[name]]
        for name in SCRIPTS
    }
    assert found == EXPECTED
    for name, given in rewards.items():
        agents = {call.id: call.agent for call in calls[name]}
        assert [agents[reward.call_id or ""] for reward in given] == [reward.agent for reward in given]
        assert sum(reward.value for reward in given) >= -0.5 - 1e-9
    # right: 1 query; wrong: 2; worse and stubborn: 3, all refused
    assert await invalid_queries(store, "run") == [Queries(step=0, rollouts=4, queries=9, invalid=7)]
