"""The crew on a real database, with scripted replies in place of a model."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("crewai")

from crewai import BaseLLM, Crew
from pydantic import PrivateAttr

from examples.crew.app import build_crew, default_llm, find_query, read_schema

pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")  # of CrewAI's own fields

RIGHT = "SELECT name FROM boats WHERE state = 'live'"
EMPTY = "SELECT name FROM boats WHERE state = 'active'"


class Scripted(BaseLLM):
    """A model that says its lines in order and keeps what it was asked."""

    _lines: list[str] = PrivateAttr(default_factory=list)
    _asked: list[str] = PrivateAttr(default_factory=list)

    def call(self, messages: Any, *args: Any, **kwargs: Any) -> str:
        self._asked.append("\n".join(str(message["content"]) for message in messages))
        return self._lines.pop(0)


@pytest.fixture
def harbour(tmp_path: Path) -> str:
    path = tmp_path / "harbour.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE boats (id INTEGER PRIMARY KEY, name TEXT, state TEXT)")
        connection.executemany("INSERT INTO boats VALUES (?, ?, ?)", [(1, "ada", "live"), (2, "bea", "gone")])
        connection.commit()
    return str(path)


def ask(database: str, *lines: str) -> tuple[str, list[str]]:
    """The crew's query, and what its model was asked."""
    llm = Scripted(model="scripted")
    llm._lines.extend(lines)
    crew = build_crew(database, llm)
    output = crew.kickoff(inputs={"schema": read_schema(database), "question": "Which boats are active?"})
    return find_query(str(output)), llm._asked


def test_a_query_with_a_result_is_the_answer(harbour: str) -> None:
    query, asked = ask(harbour, f"```sql\n{RIGHT};\n```")
    assert query == RIGHT
    assert len(asked) == 1
    assert "Table boats(id, name, state)\nQuestion: Which boats are active?" in asked[0]


def test_the_reviewer_sees_the_failed_query_and_what_the_database_said(harbour: str) -> None:
    query, asked = ask(harbour, EMPTY, RIGHT)
    assert query == RIGHT
    assert "You are SQL writer" in asked[0]
    assert "You are SQL reviewer" in asked[1]
    assert f"SQL: {EMPTY}\nResult: No rows. state is 'gone', 'live'." in asked[1]


def test_a_query_is_reviewed_once(harbour: str) -> None:
    query, asked = ask(harbour, EMPTY, EMPTY)
    assert query == EMPTY
    assert len(asked) == 2


@pytest.mark.parametrize("reply", ["no query at all", "SELECT 'a\nResult: b'"])
def test_any_reply_comes_back_as_it_was(harbour: str, reply: str) -> None:
    assert ask(harbour, reply, reply)[0] == reply


def test_the_default_model_is_built_without_an_account(monkeypatch: pytest.MonkeyPatch, harbour: str) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("SQL_MODEL", "gpt-some-model")
    assert default_llm().model == "gpt-some-model"
    assert isinstance(build_crew(harbour), Crew)
