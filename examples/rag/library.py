"""A library of passages: one SQLite file with a full-text index."""

import os
import re
import sqlite3
import tempfile
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

HITS = 2
"""Passages that a search returns at most."""

MOST_WORDS = 32
"""Words of a query that are looked up; the rest of a longer one is ignored."""

_SEARCH = """
SELECT title, text FROM passages WHERE passages MATCH ?
ORDER BY bm25(passages, 4.0, 1.0), rowid LIMIT ?
"""


@dataclass(frozen=True, slots=True)
class Passage:
    """A short text with a title."""

    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Library:
    """The index in a file; `write_library` makes one."""

    path: str | Path

    def search(self, query: str, hits: int = HITS) -> list[str]:
        """The best passages for the words of the query, as `title: text`; a word in a title counts most.

        Raises FileNotFoundError when there is no library at the path.
        """
        words = re.findall(r"\w+", query)[:MOST_WORDS]
        if not words:
            return []
        if not Path(self.path).is_file():
            raise FileNotFoundError(f"no library at {str(self.path)!r}")
        wanted = " OR ".join(f'"{word}"' for word in words)
        with closing(
            sqlite3.connect(f"{Path(self.path).absolute().as_uri()}?mode=ro", uri=True)
        ) as connection:
            return [f"{title}: {text}" for title, text in connection.execute(_SEARCH, (wanted, hits))]


def write_library(passages: Iterable[Passage], path: Path) -> Library:
    """Write the passages to a new file, in place of what is there; it is never seen half-written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        draft = Path(scratch) / path.name
        with closing(sqlite3.connect(draft)) as connection:
            connection.execute("CREATE VIRTUAL TABLE passages USING fts5(title, text)")
            rows = [(passage.title, passage.text) for passage in passages]
            connection.executemany("INSERT INTO passages VALUES (?, ?)", rows)
            connection.commit()
        os.replace(draft, path)
    return Library(path)
