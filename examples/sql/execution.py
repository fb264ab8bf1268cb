"""Running a query on a SQLite database, read-only and within a time limit, and saying what came of it."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlglot
from sqlglot import expressions as exp

Row = tuple[Any, ...]

TIME_LIMIT = 2.0
"""Seconds after which a query is interrupted."""

ROW_LIMIT = 1000
"""Rows read at most; a query that returns more has not answered a question."""

VALUE_LIMIT = 6
"""Distinct values of a column that are listed at most after an empty result."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The database's result of one query."""

    rows: tuple[Row, ...] | None
    """The result, or None when the query did not run."""
    feedback: str
    """One line for the next agent: the number of rows, the error, or the values that would have matched."""


@contextmanager
def open_database(path: str | Path) -> Iterator[sqlite3.Connection]:
    """A read-only connection to the database file, and to no other file.

    A missing file is an error, never a new empty database.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"no database at {str(path)!r}")
    with closing(sqlite3.connect(f"{Path(path).absolute().as_uri()}?mode=ro", uri=True)) as connection:
        # read-only is the file alone: ATTACH and VACUUM INTO would still write others
        connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        # some texts of Spider are not UTF-8; its own evaluation reads on, too
        connection.text_factory = lambda text: text.decode(errors="ignore")
        yield connection


def describe_schema(connection: sqlite3.Connection) -> str:
    """One line per table, `Table name(column, column, …)`, in the order of creation."""
    tables = _tables(connection)
    return "\n".join(f"Table {table}({', '.join(_columns(connection, table))})" for table in tables)


def run_query(connection: sqlite3.Connection, sql: str, time_limit: float = TIME_LIMIT) -> Outcome:
    """Run one query. Whatever goes wrong with the query is told in the outcome, not raised."""
    deadline = time.monotonic() + time_limit
    connection.set_progress_handler(lambda: int(time.monotonic() > deadline), 10_000)
    try:
        rows = connection.cursor().execute(sql).fetchmany(ROW_LIMIT)
    except (sqlite3.Error, sqlite3.Warning, ValueError, UnicodeEncodeError) as error:
        return Outcome(None, f"Error: {error}")
    finally:
        connection.set_progress_handler(None, 0)
    if any(value is not None for row in rows for value in row):
        return Outcome(tuple(rows), f"Rows: {len(rows)}")
    return Outcome(tuple(rows), _explain_empty(connection, sql))


def _explain_empty(connection: sqlite3.Connection, sql: str) -> str:
    """Say which values there are in the text columns that the query compared with a literal."""
    known = {column: table for table in _tables(connection) for column in _columns(connection, table)}
    notes = []
    for column in dict.fromkeys(_columns_compared_with_text(sql)):
        if column in known:
            notes.append(f" {column} is {_distinct(connection, known[column], column)}.")
    return "No rows." + "".join(notes)


def _columns_compared_with_text(sql: str) -> Iterator[str]:
    try:
        tree = sqlglot.parse_one(sql, dialect="sqlite")
    except sqlglot.errors.SqlglotError:
        return
    for comparison in tree.find_all(exp.EQ, exp.Like, exp.In):
        literals = [literal for literal in comparison.find_all(exp.Literal) if literal.is_string]
        if literals and isinstance(comparison.this, exp.Column):
            yield comparison.this.name


def _distinct(connection: sqlite3.Connection, table: str, column: str) -> str:
    query = f'SELECT DISTINCT "{column}" FROM "{table}" ORDER BY 1 LIMIT {VALUE_LIMIT}'
    return ", ".join(f"'{value}'" for (value,) in connection.execute(query))


def _tables(connection: sqlite3.Connection) -> list[str]:
    query = "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY rowid"
    return [name for (name,) in connection.execute(query)]


def _columns(connection: sqlite3.Connection, table: str) -> list[str]:
    return [name for (name,) in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))]
