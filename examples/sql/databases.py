"""A family of generated schemas, and real SQLite files made from them.

A database has two tables. One may carry a price and a quantity, a size, a category and a status code; the
words behind the status code differ by database and stand nowhere in its schema. Where rows are deleted
softly, every table of the database has a flag for it.
"""

import os
import random
import sqlite3
import tempfile
import zlib
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from examples.sql.names import NOUNS, Name, get_names, get_table_names

STATUS_CODES = (
    ("live", "gone"),
    ("open", "shut"),
    ("on", "off"),
    ("yes", "no"),
    ("A", "I"),
    ("up", "down"),
    ("in", "out"),
    ("green", "red"),
)
"""Codes that databases store for active and for inactive rows."""

CATEGORIES = ("amber", "blue", "coral", "delta", "ember")

SYLLABLES = ("ba", "do", "fi", "ka", "lu", "me", "no", "ra", "su", "ti", "vo", "ze")


@dataclass(frozen=True, slots=True)
class Column:
    """A column and what it holds: id, name, number, price, quantity, size, category, status or deleted."""

    name: Name
    kind: str


@dataclass(frozen=True, slots=True)
class Table:
    """A table with its rows."""

    name: Name
    columns: tuple[Column, ...]
    rows: tuple[tuple[int | str, ...], ...]

    def find_columns(self, kind: str) -> list[Name]:
        """The names of all columns of a kind."""
        return [column.name for column in self.columns if column.kind == kind]

    def get_values(self, column: Name) -> list[int]:
        """All values of a number column."""
        index = [candidate.name for candidate in self.columns].index(column)
        return [int(row[index]) for row in self.rows]


@dataclass(frozen=True, slots=True)
class Database:
    """A generated database."""

    name: str
    tables: tuple[Table, ...]
    codes: tuple[str, str]
    """Codes in the status column of active and of inactive rows."""


def generate_database(name: str, split: str, soft_delete: bool, rng: random.Random) -> Database:
    """A database of the family, from names of that split alone; held-out splits share names of columns."""
    codes, nouns = rng.choice(STATUS_CODES), set[str]()
    flag = ["deleted"] if soft_delete else []
    held_out, names = split != "train", get_table_names(split)
    main, other = rng.sample(names, 2)
    while main.noun == other.noun:
        main, other = rng.sample(names, 2)
    tables = [
        _generate_table(table, _draw_columns(kinds, held_out, nouns, rng), codes, rng)
        for table, kinds in ((main, flag + _main_kinds(rng)), (other, [*flag, "number", "number"]))
    ]
    rng.shuffle(tables)
    return Database(name, tuple(tables), codes)


def create_tables(database: Database, connection: sqlite3.Connection) -> None:
    """Create the tables with their rows in an open, empty SQLite database."""
    for table in database.tables:
        columns = ", ".join(f"{column.name.sql} {_sql_type(column.kind)}" for column in table.columns)
        connection.execute(f"CREATE TABLE {table.name.sql} ({columns})")
        marks = ", ".join("?" * len(table.columns))
        connection.executemany(f"INSERT INTO {table.name.sql} VALUES ({marks})", table.rows)
    connection.commit()


def write_database(database: Database, folder: Path) -> Path:
    """The database's file in the folder, written when it is not there; never seen half-written.

    Its name carries a digest of the contents, so a file of an older generator is never taken for it.
    """
    path = folder / f"{database.name}-{zlib.crc32(repr(database).encode()):08x}.sqlite"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        draft = Path(scratch) / path.name
        with closing(sqlite3.connect(draft)) as connection:
            create_tables(database, connection)
        os.replace(draft, path)
    return path


def _main_kinds(rng: random.Random) -> list[str]:
    kinds = ["number", "number"]
    optional = [["price", "quantity"], ["size"], ["category"], ["status"]]
    for group in rng.sample(optional, rng.choice((2, 3, 3, 4))):
        kinds += group
    return kinds


def _draw_columns(kinds: list[str], held_out: bool, nouns: set[str], rng: random.Random) -> list[Column]:
    """Columns of the kinds in random order, after those that open every table; no noun is taken twice."""
    first = [kind for kind in ("id", "deleted", "name") if kind != "deleted" or kind in kinds]
    columns = [Column(Name(kind, ""), kind) for kind in first]
    rest = [kind for kind in kinds if kind != "deleted"]
    for kind in rng.sample(rest, len(rest)):
        name = Name(kind, "")
        if kind in NOUNS:
            name = rng.choice([name for name in get_names(kind, held_out) if name.noun not in nouns])
            nouns.add(name.noun)
        columns.append(Column(name, kind))
    return columns


def _generate_table(name: Name, columns: list[Column], codes: tuple[str, str], rng: random.Random) -> Table:
    size = rng.randint(10, 18)
    labels = rng.sample([a + b + c for a in SYLLABLES for b in SYLLABLES for c in SYLLABLES], size)
    scales = {column: _scale(rng) for column in columns}
    rows = [
        tuple(_value(column, i, labels[i], scales[column], codes, rng) for column in columns)
        for i in range(size)
    ]
    return Table(name, tuple(columns), tuple(rows))


def _scale(rng: random.Random) -> tuple[int, ...]:
    """The few values that a number column takes: ties are common, and the mean is not always near 50."""
    low = rng.choice((10, 20, 40, 60))
    return tuple(rng.sample(range(low, low + 38), 7))


def _value(
    column: Column, index: int, label: str, scale: tuple[int, ...], codes: tuple[str, str], rng: random.Random
) -> int | str:
    match column.kind:
        case "id":
            return index + 1
        case "name":
            return label
        case "category":
            return rng.choice(CATEGORIES)
        case "status":
            return rng.choice(codes)
        case "deleted":
            return int(rng.random() < 0.4)
        case "quantity":
            return rng.randint(1, 9)
        case _:
            return rng.choice(scale)


def _sql_type(kind: str) -> str:
    if kind == "id":
        return "INTEGER PRIMARY KEY"
    return "TEXT" if kind in ("name", "category", "status") else "INTEGER"
