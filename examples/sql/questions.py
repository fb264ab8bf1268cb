"""Questions on a generated database, with the query that answers each in this app's conventions.

Every question belongs to a `form`. The plain forms have one reading. The others hang on a convention that a
question does not spell out, and that differs from company to company. Here

- revenue is price times quantity, summed;
- a row whose `deleted` flag is set does not exist;
- rows that tie for a top place are taken in the order of their names;
- large means larger than the average;
- active means the status code that stands for it, whatever word the database uses: the writer of a query
  cannot know it, the database's answer to a wrong guess tells it.

`Question.others` holds the readings that are common elsewhere, to check that a task tells them apart.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from examples.sql.databases import Database, Table

COMPARISONS = (
    (">", ("above", "over", "more than")),
    ("<", ("below", "under", "less than")),
)
AGGREGATES = (("MAX", "highest"), ("MIN", "lowest"), ("AVG", "average"), ("SUM", "total"))


@dataclass(frozen=True, slots=True)
class Question:
    """A question about one database."""

    form: str
    text: str
    gold: str
    """The query that answers the question by this app's conventions."""
    others: dict[str, str] = field(default_factory=dict)
    """Queries that would answer it by another convention, by the name of that convention."""


def ask(form: str, database: Database, rng: random.Random) -> Question | None:
    """A question of a form, or None when no table of the database allows one."""
    tables = [table for table in database.tables if _suits(form, table)]
    return FORMS[form](database, rng.choice(tables), rng) if tables else None


def _suits(form: str, table: Table) -> bool:
    kinds = {column.kind for column in table.columns}
    return NEEDS[form] <= kinds and ("deleted" in kinds) == ("deleted" in NEEDS[form])


def _list(database: Database, table: Table, rng: random.Random) -> Question:
    condition, words = _condition(table, rng)
    text = rng.choice(("List the {t} with {w}.", "Which {t} have {w}?", "Name all {t} with {w}."))
    return _question("list", text, table, words, f"SELECT name FROM {table.name.sql} WHERE {condition}")


def _count(database: Database, table: Table, rng: random.Random) -> Question:
    condition, words = _condition(table, rng)
    text = rng.choice(("How many {t} have {w}?", "Count the {t} with {w}."))
    return _question("count", text, table, words, f"SELECT COUNT(*) FROM {table.name.sql} WHERE {condition}")


def _aggregate(database: Database, table: Table, rng: random.Random) -> Question:
    function, word = rng.choice(AGGREGATES)
    column = rng.choice(table.find_columns("number"))
    text = rng.choice(("What is the {w} of all {t}?", "Give the {w} of the {t}."))
    gold = f"SELECT {function}({column.sql}) FROM {table.name.sql}"
    return _question("aggregate", text, table, f"{word} {column.words}", gold)


def _group(database: Database, table: Table, rng: random.Random) -> Question:
    column = rng.choice(table.find_columns("category"))
    text = rng.choice(("How many {t} are there per {w}?", "Count the {t} for each {w}."))
    gold = f"SELECT {column.sql}, COUNT(*) FROM {table.name.sql} GROUP BY {column.sql}"
    return _question("group", text, table, column.words, gold)


def _revenue(database: Database, table: Table, rng: random.Random) -> Question:
    condition, words = _condition(table, rng)
    text = rng.choice(("What is the revenue of {t} with {w}?", "Give the revenue from {t} with {w}."))
    rest = f"FROM {table.name.sql} WHERE {condition}"
    others = {"price": f"SELECT SUM(price) {rest}", "quantity": f"SELECT SUM(quantity) {rest}"}
    return _question("revenue", text, table, words, f"SELECT SUM(price * quantity) {rest}", others)


def _kept_list(database: Database, table: Table, rng: random.Random) -> Question:
    return _kept("kept_list", _list(database, table, rng))


def _kept_count(database: Database, table: Table, rng: random.Random) -> Question:
    return _kept("kept_count", _count(database, table, rng))


def _kept(form: str, plain: Question) -> Question:
    """The same question of a table with a flag, where the gold query leaves out the deleted rows."""
    others = {"ignore": plain.gold, "deleted": f"{plain.gold} AND deleted = 1"}
    return Question(form, plain.text, f"{plain.gold} AND deleted = 0", others)


def _top(database: Database, table: Table, rng: random.Random) -> Question:
    column = rng.choice(table.find_columns("number"))
    number = rng.randint(2, 5)
    text = rng.choice(("What are the top {n} {t} by {w}?", "Show the {n} {t} with the highest {w}."))
    start = f"SELECT name FROM {table.name.sql} ORDER BY {column.sql} DESC"
    others = {"none": f"{start} LIMIT {number}", "id": f"{start}, id LIMIT {number}"}
    return _question(
        "top", text.replace("{n}", str(number)), table, column.words, f"{start}, name LIMIT {number}", others
    )


def _large(database: Database, table: Table, rng: random.Random) -> Question:
    text = rng.choice(("List the large {t}.", "Which {t} are large?", "Name all large {t}."))
    start = f"SELECT name FROM {table.name.sql} WHERE size >"
    others = {"50": f"{start} 50", "80": f"{start} 80"}
    return _question("large", text, table, "", f"{start} (SELECT AVG(size) FROM {table.name.sql})", others)


def _active(database: Database, table: Table, rng: random.Random) -> Question:
    text = rng.choice(("List the active {t}.", "Which {t} are active?", "Name all active {t}."))
    start = f"SELECT name FROM {table.name.sql}"
    where = f"{start} WHERE status ="
    active, inactive = database.codes
    others = {"all": start, "word": f"{where} 'active'", "inactive": f"{where} '{inactive}'"}
    return _question("active", text, table, "", f"{where} '{active}'", others)


def _condition(table: Table, rng: random.Random) -> tuple[str, str]:
    """A comparison as SQL and as words."""
    sign, phrases = rng.choice(COMPARISONS)
    column = rng.choice(table.find_columns("number"))
    number = rng.choice(table.get_values(column)) + rng.randint(-3, 3)
    number = min(max(number, 10), 99)
    return f"{column.sql} {sign} {number}", f"{column.words} {rng.choice(phrases)} {number}"


def _question(
    form: str, text: str, table: Table, words: str, gold: str, others: dict[str, str] | None = None
) -> Question:
    return Question(form, text.format(t=table.name.words, w=words), gold, others or {})


FORMS: dict[str, Callable[[Database, Table, random.Random], Question]] = {
    "list": _list,
    "count": _count,
    "aggregate": _aggregate,
    "group": _group,
    "revenue": _revenue,
    "kept_list": _kept_list,
    "kept_count": _kept_count,
    "top": _top,
    "large": _large,
    "active": _active,
}

NEEDS: dict[str, frozenset[str]] = {
    "list": frozenset({"number"}),
    "count": frozenset({"number"}),
    "aggregate": frozenset({"number"}),
    "group": frozenset({"category"}),
    "revenue": frozenset({"number", "price", "quantity"}),
    "kept_list": frozenset({"number", "deleted"}),
    "kept_count": frozenset({"number", "deleted"}),
    "top": frozenset({"number"}),
    "large": frozenset({"size"}),
    "active": frozenset({"status"}),
}
"""The kinds of column that each form needs in a table. Only the `kept` forms take a flagged table."""
