"""The SQL app on real databases, with scripted replies in place of a model."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_openai import ChatOpenAI

from examples.sql.app import MAX_REWRITES, build_graph, clean_sql, default_llm
from examples.sql.execution import Outcome, describe_schema, open_database, run_query

RIGHT = "SELECT name FROM boats WHERE state = 'live'"
EMPTY = "SELECT name FROM boats WHERE state = 'active'"


@pytest.fixture
def harbour(tmp_path: Path) -> str:
    path = tmp_path / "harbour.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(
            "CREATE TABLE boats (id INTEGER PRIMARY KEY, name TEXT, state TEXT, speed INTEGER)"
        )
        rows = [(1, "ada", "live", 10), (2, "bea", "gone", 20), (3, "cy", "live", 30)]
        connection.executemany("INSERT INTO boats VALUES (?, ?, ?, ?)", rows)
        connection.commit()
    return str(path)


def run(path: str, sql: str, time_limit: float = 2.0) -> Outcome:
    with open_database(path) as connection:
        return run_query(connection, sql, time_limit)


def test_a_query_that_is_ok_is_not_rewritten(harbour: str) -> None:
    state = build_graph(FakeListChatModel(responses=[RIGHT, "ok"])).invoke(question(harbour))
    assert (state["sql"], state["rewrites"]) == (RIGHT, 0)
    assert state["result"] == (("ada",), ("cy",))


async def test_the_rewriter_gets_its_turn_after_an_empty_result(harbour: str) -> None:
    graph = build_graph(FakeListChatModel(responses=[EMPTY, "rewrite", RIGHT, "ok"]))
    state = await graph.ainvoke(question(harbour))
    assert (state["sql"], state["rewrites"]) == (RIGHT, 1)


def test_a_query_is_rewritten_twice_at_most(harbour: str) -> None:
    state = build_graph(FakeListChatModel(responses=[EMPTY, "rewrite"])).invoke(question(harbour))
    assert state["rewrites"] == MAX_REWRITES == 2


def test_each_agent_is_a_node_of_its_own() -> None:
    nodes = set(build_graph(FakeListChatModel(responses=["ok"])).get_graph().nodes)
    assert {"write_query", "execute", "check_query", "rewrite_query"} <= nodes


def test_the_default_model_is_built_without_an_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("SQL_MODEL", "some-model")
    llm = default_llm()
    assert isinstance(llm, ChatOpenAI)
    assert llm.model_name == "some-model"


@pytest.mark.parametrize(
    "reply", [RIGHT, f" {RIGHT}; ", f"```sql\n{RIGHT};\n```", f"Here it is:\n```\n{RIGHT}\n```\nDone."]
)
def test_the_query_is_found_in_a_reply(reply: str) -> None:
    assert clean_sql(reply) == RIGHT


def test_an_empty_result_tells_the_values_of_the_compared_text_column(harbour: str) -> None:
    assert run(harbour, EMPTY) == Outcome((), "No rows. state is 'gone', 'live'.")


def test_an_empty_comparison_of_numbers_tells_no_values(harbour: str) -> None:
    assert run(harbour, "SELECT name FROM boats WHERE speed > 99").feedback == "No rows."


def test_a_sum_over_nothing_counts_as_empty(harbour: str) -> None:
    assert run(harbour, "SELECT SUM(speed) FROM boats WHERE speed > 99").feedback == "No rows."


def test_an_error_of_the_database_is_the_feedback(harbour: str) -> None:
    assert run(harbour, "SELECT nam FROM boats") == Outcome(None, "Error: no such column: nam")


@pytest.mark.parametrize("sql", ["DROP TABLE boats", "DELETE FROM boats", "CREATE TABLE t (a)"])
def test_a_query_cannot_change_the_database(harbour: str, sql: str) -> None:
    assert run(harbour, sql).rows is None
    assert run(harbour, "SELECT COUNT(*) FROM boats").rows == ((3,),)


@pytest.mark.parametrize("sql", ["ATTACH DATABASE '{}' AS e", "VACUUM INTO '{}'"])
def test_a_query_cannot_write_another_file(harbour: str, tmp_path: Path, sql: str) -> None:
    with open_database(harbour) as connection:
        outcome = run_query(connection, sql.format(tmp_path / "other.db"))
        assert outcome.rows is None
        assert "too many attached databases" in outcome.feedback
        run_query(connection, "CREATE TABLE e.t (x)")
    assert [path.name for path in tmp_path.iterdir()] == ["harbour.sqlite"]


@pytest.mark.parametrize("sql", ["", "no sql at all", "SELECT 'a", "SELECT 1; SELECT 2", "SELECT '\ud800'"])
def test_a_reply_that_is_no_query_raises_nothing(harbour: str, sql: str) -> None:
    outcome = run(harbour, sql)
    assert outcome.rows is None or outcome.feedback.startswith("No rows")


def test_an_endless_query_is_interrupted(harbour: str) -> None:
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i FROM n) SELECT COUNT(*) FROM n"
    assert run(harbour, endless, time_limit=0.05) == Outcome(None, "Error: interrupted")


def test_the_schema_names_every_column(harbour: str) -> None:
    with open_database(harbour) as connection:
        assert describe_schema(connection) == "Table boats(id, name, state, speed)"


def test_a_missing_database_is_an_error_and_is_not_created(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.sqlite"):
        build_graph(FakeListChatModel(responses=["ok"])).invoke(question(str(tmp_path / "none.sqlite")))
    assert not list(tmp_path.iterdir())


def question(path: str) -> dict[str, str]:
    return {"question": "Which boats are active?", "database": path}
