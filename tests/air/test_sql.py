"""SQL that the database refuses is the fault of the call that wrote it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from lightning_core.air.sql import sql_error
from lightning_core.records.types import Span
from tests.air.records import asks, call, recorded, span, where

BAD = "SELECT nam FROM boats"
WHY = "OperationalError: no such column: nam"


def refused(statement: str = BAD, name: str = "db__query__text") -> Span:
    return span(WHY, **{name: statement})


def found(*items: Any) -> list[tuple[str, str | None]]:
    return where(sql_error(recorded(*items)))


WRONG = [
    "SELECT nam FROM boats",
    "SELECT name FROM boat",
    "SELEC name FROM boats",
    "SELECT name FROM boats WHERE",
    "SELECT 'ada FROM boats",
    "SELECT id FROM boats, crews",
    "SELECT MEDIAN(id) FROM boats",
    "SELECT id FROM boats WHERE COUNT(*) > 1",
    "SELECT ABS(1, 2) FROM boats",
    "SELECT id FROM boats UNION SELECT id, boat FROM crews",
    "SELECT id FROM boats WHERE id = (SELECT id, boat FROM crews)",
    "SELECT id FROM boats ORDER BY 2",
    "SELECT id FROM boats HAVING id > 1",
    "SELECT id FROM boats GROUP BY COUNT(*)",
    "SELECT id FROM boats LIMIT 1 UNION SELECT id FROM crews",
    "SELECT id FROM boats USING (name)",
    "SELECT * FROM boats JOIN crews USING (name)",
    "INSERT INTO boats VALUES (1, 2, 3)",
    "INSERT INTO boats (nam) VALUES (1)",
    "CREATE TABLE boats (id INTEGER)",
    "SELECT id FROM boats; SELECT name FROM boats",
    "SELECT id FROM boats WHERE (id, name) = 1",
    "SELECT ROW_NUMBER() FROM boats",
]
SQLITE = {"db__system": "sqlite"}
POSTGRES = {"db__system__name": "postgresql"}
MYSQL = {"db__system": "mysql"}
AT_FAULT = [
    ("OperationalError: no such table: boat", SQLITE),
    ('OperationalError: near "SELEC": syntax error', SQLITE),
    ("OperationalError: incomplete input", SQLITE),
    ('OperationalError: unrecognized token: "\'a"', SQLITE),
    ("OperationalError: ambiguous column name: id", SQLITE),
    ("OperationalError: misuse of aggregate: COUNT()", SQLITE),
    ("OperationalError: no such function: MEDIAN", SQLITE),
    ("OperationalError: 1st ORDER BY term out of range - should be between 1 and 1", SQLITE),
    ("sqlite3.OperationalError: no such column: nam", {}),
    ("no such column: nam", SQLITE),
    ("OperationalError: (sqlite3.OperationalError) no such column: nam\n[SQL: SELECT nam]", SQLITE),
    ("ProgrammingError: You can only execute one statement at a time.", SQLITE),
    ("Warning: You can only execute one statement at a time.", SQLITE),
    ("no such column: nam", {}),
    ('UndefinedColumn: column "nam" does not exist\nLINE 1: SELECT nam', POSTGRES),
    ('UndefinedTableError: relation "boat" does not exist', POSTGRES),
    ('psycopg.errors.SyntaxError: syntax error at or near "SELEC"', POSTGRES),
    ('ProgrammingError: (psycopg.errors.GroupingError) column "a" must appear in the GROUP BY', POSTGRES),
    ('InvalidTextRepresentation: invalid input syntax for type integer: "x"', POSTGRES),
    ("DivisionByZero: division by zero", POSTGRES),
    ('column "nam" does not exist\nLINE 1: SELECT nam', POSTGRES),
    ("refused", POSTGRES | {"db__response__status_code": "42P01"}),
    ("refused", POSTGRES | {"db__response__status_code": "22P02"}),
    ("ERROR: no (SQLSTATE 42703)", POSTGRES),
    ("ProgrammingError: (1146, \"Table 'db.boat' doesn't exist\")", MYSQL),
    ("OperationalError: (1054, \"Unknown column 'nam' in 'field list'\")", MYSQL),
    ("ProgrammingError: (1064, 'You have an error in your SQL syntax; check ...')", MYSQL),
]
NOT_AT_FAULT = [
    ("OperationalError: database is locked", SQLITE),
    ("OperationalError: database table is locked: boats", SQLITE),
    ("OperationalError: interrupted", SQLITE),
    ("OperationalError: unable to open database file", SQLITE),
    ("OperationalError: disk I/O error", SQLITE),
    ("OperationalError: database or disk is full", SQLITE),
    ("OperationalError: attempt to write a readonly database", SQLITE),
    ("OperationalError: cannot start a transaction within a transaction", SQLITE),
    ("OperationalError: user-defined function raised exception", SQLITE),
    ("OperationalError: (sqlite3.OperationalError) database is locked\n[SQL: SELECT nam]", SQLITE),
    ("database is locked", {}),
    ("sqlite3.OperationalError: database is locked", {}),
    ("ProgrammingError: Cannot operate on a closed database.", SQLITE),
    ("ProgrammingError: Incorrect number of bindings supplied. The current statement uses 1", SQLITE),
    ("IntegrityError: UNIQUE constraint failed: boats.id", SQLITE),
    ("DatabaseError: database disk image is malformed", SQLITE),
    ("", SQLITE),
    ('OperationalError: connection to server at "db" failed: Connection refused', POSTGRES),
    ('OperationalError: FATAL: database "boats" does not exist', POSTGRES),
    ("QueryCanceled: canceling statement due to statement timeout", POSTGRES),
    ("DeadlockDetected: deadlock detected", POSTGRES),
    ('LockNotAvailable: could not obtain lock on relation "boats"', POSTGRES),
    ("UniqueViolation: duplicate key value violates unique constraint", POSTGRES),
    ("ProgrammingError: the cursor is closed", POSTGRES),
    ("syntax error, but the state says else", POSTGRES | {"db__response__status_code": "57014"}),
    ("OperationalError: (2013, 'Lost connection to MySQL server during query')", MYSQL),
    ("OperationalError: (1205, 'Lock wait timeout exceeded; try restarting transaction')", MYSQL),
    ("TimeoutError: ", {}),
    ("", {}),
]


@pytest.mark.parametrize(("said", "attributes"), AT_FAULT)
def test_an_error_of_the_statement_is_the_writer_s(said: str, attributes: dict[str, str]) -> None:
    failed = span(said, **{"db__query__text": BAD, **attributes})
    assert found(call(1, text=BAD), failed) == [("c1", None)]


@pytest.mark.parametrize(("said", "attributes"), NOT_AT_FAULT)
def test_the_state_of_the_database_is_nobody_s_fault(said: str, attributes: dict[str, str]) -> None:
    assert found(call(1, text=BAD), span(said, **{"db__query__text": BAD, **attributes})) == []


def test_sqlite_s_own_errors_are_told_apart(tmp_path: Path) -> None:
    """Runs Python's driver on statements that can't be right, and on one that meets a lock."""

    def at_fault(statement: str, connection: sqlite3.Connection) -> bool:
        with pytest.raises((sqlite3.Error, sqlite3.Warning)) as raised:
            connection.execute(statement)
        said = f"{type(raised.value).__name__}: {raised.value}"
        failed = span(said, db__query__text=statement, **SQLITE)
        return bool(found(call(1, text=statement), failed))

    path = tmp_path / "harbour.sqlite"
    with closing(sqlite3.connect(path)) as connection, closing(sqlite3.connect(path, timeout=0)) as other:
        connection.execute("CREATE TABLE boats (id INTEGER PRIMARY KEY, name TEXT)")
        connection.execute("CREATE TABLE crews (id INTEGER, boat INTEGER)")
        connection.commit()
        for statement in WRONG:
            assert at_fault(statement, connection), statement
        connection.execute("BEGIN EXCLUSIVE")
        assert not at_fault("SELECT name FROM boats", other)
        assert not at_fault("BEGIN", connection)
        connection.execute("INSERT INTO boats VALUES (1, 'ada')")
        assert not at_fault("INSERT INTO boats VALUES (1, 'ada')", connection)


@pytest.mark.parametrize(
    "reply",
    [
        BAD,
        f"  {BAD};\n",
        "SELECT nam\n  FROM boats",
        f"```sql\n{BAD};\n```",
        f"```\n{BAD}\n```",
        f"Here it is:\n```sqlite\n{BAD}\n```\nDone.",
        f"<think>\nboats, so\n</think>\n\n{BAD}",
        f'{{"sql": "{BAD}", "sure": true}}',
    ],
)
def test_the_reply_that_holds_the_statement_is_found(reply: str) -> None:
    assert found(call(1, text=reply), call(2, text="SELECT name FROM boats"), refused()) == [("c1", None)]


def test_the_statement_is_read_in_both_conventions_and_the_reason_says_what_the_database_said() -> None:
    for name in ("db__query__text", "db__statement"):
        (signal,) = sql_error(recorded(call(1, text=BAD), refused(name=name)))
        assert signal.detail == f"no such column: nam: {BAD}"


def test_a_statement_in_a_tool_s_arguments_is_found() -> None:
    asking = call(1, asks(name="run_sql", arguments={"query": f"{BAD};", "limit": 3}))
    assert found(asking, refused()) == [("c1", "t1")]


def test_every_call_that_wrote_it_is_found_once() -> None:
    spans = refused(), refused().model_copy(update={"id": "s2"})
    assert found(call(1, text=BAD), call(2, text=BAD), *spans) == [("c1", None), ("c2", None)]


def test_a_quotation_is_no_query() -> None:
    shown = f"Question: names?\nSQL: {BAD}\nResult: Error: no such column: nam"
    review = call(2, text=f"This can't run:\n```sql\n{BAD}\n```", prompt=shown)
    assert found(call(1, text=BAD), review, refused()) == [("c1", None)]
    # but the same query given again as the whole reply is a query
    assert found(call(1, text=BAD), call(2, text=BAD, prompt=shown), refused()) == [
        ("c1", None),
        ("c2", None),
    ]


@pytest.mark.parametrize(
    "reply", ["", "ok", f"{BAD} WHERE id = 1", f"I would not write {BAD}.", BAD.replace("nam", "NAM")]
)
def test_another_text_is_not_linked(reply: str) -> None:
    assert found(call(1, text=reply), refused(), refused("")) == []


def test_a_statement_that_also_ran_well_was_not_at_fault() -> None:
    assert found(call(1, text=BAD), refused(), span(None, db__statement=f"{BAD};")) == []


def test_a_span_that_is_no_database_s_says_nothing() -> None:
    assert found(call(1, text=BAD), span(WHY, code=BAD), span(WHY, db__statement=3)) == []
