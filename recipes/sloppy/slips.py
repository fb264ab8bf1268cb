"""Slips: what becomes of a query that is written in haste.

Some slips leave a query that the database refuses: a name without its suffix, a name as the question says it,
a column of another table, text without quotes, a bracket left open. Others leave one that runs and answers
another question: another column of the same table, the comparison the wrong way round. So a query that runs
is not yet right, and one that was refused need not have been meant wrongly.
"""

from __future__ import annotations

import random
import re
import sqlite3
from collections.abc import Callable, Sequence

from examples.sql.databases import Database, Table
from examples.sql.execution import run_query
from examples.sql.names import Name

Slip = Callable[[str, Database, random.Random], str | None]
"""The query with the slip; None where it gives no occasion for it."""


def drop_suffix(sql: str, database: Database, rng: random.Random) -> str | None:
    """`speed` for `speed_old`."""
    name = _pick([name for name in _names_in(sql, database) if name.suffix], rng)
    return _replace(sql, name, name.noun) if name else None


def quote_question(sql: str, database: Database, rng: random.Random) -> str | None:
    """`speed old` for `speed_old`, as the question has it."""
    name = _pick([name for name in _names_in(sql, database) if name.suffix], rng)
    return _replace(sql, name, name.words) if name else None


def stray_column(sql: str, database: Database, rng: random.Random) -> str | None:
    """A number column of the other table."""
    table = _table_of(sql, database)
    others = [n for each in database.tables if each is not table for n in each.find_columns("number")]
    return _change_column(sql, table, others, rng)


def drop_quotes(sql: str, database: Database, rng: random.Random) -> str | None:
    """`status = active` for `status = 'active'`."""
    return sql.replace("'", "") if "'" in sql else None


def leave_open(sql: str, database: Database, rng: random.Random) -> str | None:
    """`COUNT(*` for `COUNT(*)`."""
    head, bracket, tail = sql.rpartition(")")
    return head + tail if bracket else None


def swap_column(sql: str, database: Database, rng: random.Random) -> str | None:
    """Another number column of the same table."""
    table = _table_of(sql, database)
    return _change_column(sql, table, table.find_columns("number"), rng)


def flip_comparison(sql: str, database: Database, rng: random.Random) -> str | None:
    """`<` for `>`."""
    flipped = sql.translate(str.maketrans("<>", "><"))
    return flipped if flipped != sql else None


REFUSED: tuple[Slip, ...] = (drop_suffix, quote_question, stray_column, drop_quotes, leave_open)
"""Slips that the database refuses."""

RUNS: tuple[Slip, ...] = (swap_column, flip_comparison)
"""Slips that it can't see."""


def slip(
    sql: str, database: Database, connection: sqlite3.Connection, rng: random.Random, slips: Sequence[Slip]
) -> str:
    """The query with one of the slips, each as likely as the others; as it was where none has an occasion."""
    wanted = slips is REFUSED
    for make in rng.sample(slips, len(slips)):
        slipped = make(sql, database, rng)
        if slipped is not None and is_refused(connection, slipped) == wanted:
            return slipped
    return sql


def is_refused(connection: sqlite3.Connection, sql: str) -> bool:
    return run_query(connection, sql).rows is None


def _change_column(sql: str, table: Table, others: list[Name], rng: random.Random) -> str | None:
    old = _pick(_words_of(sql, table.find_columns("number")), rng)
    new = _pick([name for name in others if name != old], rng)
    return _replace(sql, old, new.sql) if old and new else None


def _table_of(sql: str, database: Database) -> Table:
    return next(table for table in database.tables if f" {table.name.sql} " in f"{sql} ".replace(")", " "))


def _names_in(sql: str, database: Database) -> list[Name]:
    """The names of the table and its columns that the query has."""
    table = _table_of(sql, database)
    return _words_of(sql, [table.name, *(column.name for column in table.columns)])


def _words_of(sql: str, names: list[Name]) -> list[Name]:
    words = set(re.findall(r"\w+", sql))
    return [name for name in names if name.sql in words]


def _replace(sql: str, name: Name, words: str) -> str:
    return re.sub(rf"\b{name.sql}\b", words, sql)


def _pick(names: list[Name], rng: random.Random) -> Name | None:
    return rng.choice(names) if names else None
