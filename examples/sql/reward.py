"""The reward: does a query return what the gold query returns?"""

from collections import Counter
from pathlib import Path

import sqlglot

from examples.sql.execution import Row, open_database, run_query


def execution_match(sql: str, gold: str, database: str | Path) -> float:
    """1.0 when both queries return the same rows on the database, else 0.0.

    Rows are compared as a multiset, or in order when the gold query is ordered. A query that does not run
    earns 0.0; a gold query that does not run is a fault of the task and raises ValueError.
    """
    with open_database(database) as connection:
        expected = run_query(connection, gold)
        if expected.rows is None:
            raise ValueError(
                f"the gold query {gold!r} does not run on {str(database)!r}: {expected.feedback}"
            )
        found = run_query(connection, sql)
    return float(found.rows is not None and same_rows(found.rows, expected.rows, is_ordered(gold)))


def same_rows(found: tuple[Row, ...], expected: tuple[Row, ...], ordered: bool) -> bool:
    """Whether two results are equal; floats are compared to six significant digits."""
    left, right = [_rounded(row) for row in found], [_rounded(row) for row in expected]
    return left == right if ordered else Counter(left) == Counter(right)


def is_ordered(sql: str) -> bool:
    """Whether the rows of a query come in an order that it asks for."""
    tree = sqlglot.parse_one(sql, dialect="sqlite")
    return tree.args.get("order") is not None


def _rounded(row: Row) -> Row:
    return tuple(float(f"{value:.6g}") if isinstance(value, float) else value for value in row)
