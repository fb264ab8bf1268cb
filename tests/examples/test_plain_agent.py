"""The program of examples/plain as it is started: a process that knows standard input and an address."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from examples.plain.agent import describe_schema, open_database, run_query
from examples.sql import execution, prompts
from examples.sql.tasks import load_tasks
from lightning_core.dialects.upstream import ChatRequest
from lightning_core.records.types import Call
from tests.gateway.conftest import House, open_house
from tests.gateway.scripted import Line, ScriptedEngine

PROGRAM = Path(__file__).parents[2] / "examples/plain/agent.py"
RIGHT = "SELECT name FROM boats WHERE state = 'live'"
EMPTY = "SELECT name FROM boats WHERE state = 'active'"
QUESTION = "Which boats are active?"


@pytest.fixture
def harbour(tmp_path: Path) -> str:
    path = tmp_path / "harbour.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE boats (id INTEGER PRIMARY KEY, name TEXT, state TEXT)")
        connection.executemany("INSERT INTO boats VALUES (?, ?, ?)", [(1, "ada", "live"), (2, "bea", "gone")])
        connection.commit()
    return str(path)


async def run(database: str, **environment: str) -> tuple[int | None, str, str]:
    """Status, standard output and standard error of one run."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", str(PROGRAM)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "OPENAI_API_KEY": "none", **environment},
    )
    task = json.dumps({"question": QUESTION, "database": database})
    printed, complaint = await process.communicate(task.encode())
    return process.returncode, printed.decode(), complaint.decode()


def model(*, writer: str, rewriter: str) -> ScriptedEngine:
    def says(request: ChatRequest, choice: int) -> Line:
        return Line(rewriter if "Rewrite" in str(request.messages[0]["content"]) else writer)

    return ScriptedEngine(says=says)


async def calls_of(house: House, database: str, token: str) -> tuple[dict[str, object], list[Call]]:
    """Returns the program's answer, and its recorded calls in order."""
    base = f"{house.url}/rollouts/r1/agents"
    status, printed, complaint = await run(
        database,
        OPENAI_BASE_URL=f"{base}/writer/v1",
        REWRITER_BASE_URL=f"{base}/rewriter/v1",
        OPENAI_API_KEY=token,
    )
    assert status == 0, complaint
    return json.loads(printed), sorted(await house.calls(), key=lambda call: call.started_at)


async def test_a_query_with_a_result_is_the_answer(harbour: str) -> None:
    async with open_house(model(writer=f"```sql\n{RIGHT};\n```", rewriter="")) as house:
        answer, calls = await calls_of(house, harbour, await house.rollout())
    assert answer == {"sql": RIGHT, "rewrites": 0}
    assert [call.agent for call in calls] == ["writer"]


async def test_each_role_asks_at_its_own_address_with_the_prompts_of_the_sql_app(harbour: str) -> None:
    async with open_house(model(writer=EMPTY, rewriter=RIGHT)) as house:
        answer, calls = await calls_of(house, harbour, await house.rollout())
    assert answer == {"sql": RIGHT, "rewrites": 1}
    assert [call.agent for call in calls] == ["writer", "rewriter"]
    schema, feedback = "Table boats(id, name, state)", "No rows. state is 'gone', 'live'."
    assert [call.request["messages"] for call in calls] == [
        prompts.write_prompt(schema, QUESTION),
        prompts.rewrite_prompt(schema, QUESTION, EMPTY, feedback),
    ]


async def test_a_query_is_rewritten_twice_at_most(harbour: str) -> None:
    async with open_house(model(writer=EMPTY, rewriter=EMPTY)) as house:
        answer, calls = await calls_of(house, harbour, await house.rollout())
    assert answer == {"sql": EMPTY, "rewrites": 2}
    assert [call.agent for call in calls] == ["writer", "rewriter", "rewriter"]


async def test_a_refusal_of_the_endpoint_ends_the_program_with_its_words(harbour: str) -> None:
    async with open_house() as house:
        status, printed, complaint = await run(harbour, OPENAI_BASE_URL=f"{house.url}/v1")
    assert (status, printed) == (1, "")
    assert "answered 401" in complaint


def test_a_missing_database_ends_the_program_and_is_not_created(tmp_path: Path) -> None:
    status, _, complaint = asyncio.run(run(str(tmp_path / "none.sqlite")))
    assert status == 1
    assert "unable to open database file" in complaint
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("sql", ["ATTACH DATABASE '{}' AS e", "VACUUM INTO '{}'"])
def test_a_query_cannot_write_another_file(harbour: str, tmp_path: Path, sql: str) -> None:
    with open_database(harbour) as connection:
        assert "too many attached databases" in run_query(connection, sql.format(tmp_path / "other.db"))
        run_query(connection, "CREATE TABLE e.t (x)")
    assert [path.name for path in tmp_path.iterdir()] == ["harbour.sqlite"]


def test_the_program_sees_a_database_as_the_sql_app_does(tmp_path: Path) -> None:
    for task in load_tasks("validation", tmp_path, limit=60):
        queries = [
            task["gold"],
            task["gold"].replace("status = '", "status = 'in"),
            task["gold"].replace("name", "nme"),
            task["gold"] + " AND",
        ]
        with execution.open_database(task["database"]) as connection:
            assert describe_schema(connection) == execution.describe_schema(connection)
            for sql in queries:
                assert run_query(connection, sql) == execution.run_query(connection, sql).feedback
