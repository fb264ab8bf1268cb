"""Execution match."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from examples.sql.reward import execution_match, is_ordered


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    path = tmp_path / "numbers.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t (a INTEGER, b TEXT)")
        connection.executemany("INSERT INTO t VALUES (?, ?)", [(1, "x"), (2, "y"), (2, "z")])
        connection.commit()
    return path


@pytest.mark.parametrize(
    ("sql", "gold", "reward"),
    [
        ("SELECT a FROM t WHERE b = 'x'", "SELECT 1", 1.0),
        ("SELECT a FROM t ORDER BY a DESC", "SELECT a FROM t", 1.0),
        ("SELECT a FROM t ORDER BY a DESC", "SELECT a FROM t ORDER BY a", 0.0),
        ("SELECT DISTINCT a FROM t", "SELECT a FROM t", 0.0),
        ("SELECT a, b FROM t", "SELECT b, a FROM t", 0.0),
        ("SELECT AVG(a) FROM t", "SELECT 1.6666667", 1.0),
        ("SELECT AVG(a) FROM t", "SELECT 1.667", 0.0),
        ("SELECT a FROM t WHERE a > 5", "SELECT a FROM t WHERE a > 6", 1.0),
        ("SELECT a FROM", "SELECT a FROM t", 0.0),
        ("", "SELECT a FROM t", 0.0),
        ("DELETE FROM t", "SELECT a FROM t WHERE a > 6", 0.0),
    ],
)
def test_rows_are_compared_as_the_gold_query_orders_them(
    numbers: Path, sql: str, gold: str, reward: float
) -> None:
    assert execution_match(sql, gold, numbers) == reward


def test_an_order_inside_a_subquery_orders_nothing() -> None:
    assert is_ordered("SELECT a FROM t ORDER BY a")
    assert not is_ordered("SELECT a FROM (SELECT a FROM t ORDER BY a LIMIT 2)")


def test_a_gold_query_that_does_not_run_is_a_fault_of_the_task(numbers: Path) -> None:
    with pytest.raises(ValueError, match="no such table: u"):
        execution_match("SELECT 1", "SELECT a FROM u", numbers)
