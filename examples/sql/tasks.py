"""Tasks: questions on real SQLite files, split by database.

The training split is made of names that the held-out splits never use; validation and test share no table, so
no question and no query. Every task tells this app's conventions apart: its gold query returns something, and
no other convention returns the same.
"""

import random
import sqlite3
from contextlib import closing
from pathlib import Path

from examples.sql.databases import Database, create_tables, generate_database, write_database
from examples.sql.execution import run_query
from examples.sql.questions import FORMS, NEEDS, Question, ask
from examples.sql.reward import is_ordered, same_rows

SPLITS = {"train": 48, "validation": 12, "test": 24}
"""The number of databases in each split."""

DRAWS = {form: 4 if "deleted" in needs else 2 if needs == {"number"} else 3 for form, needs in NEEDS.items()}
"""Questions of each form that are drawn for a database; more where fewer databases allow the form."""

TRIES = 30
"""Draws of a question before a database is given up for a form."""


def load_tasks(
    split: str, data_dir: str | Path, limit: int | None = None, seed: int = 0
) -> list[dict[str, str]]:
    """The tasks of a split, in the order that the seed gives, the first `limit` of them.

    Each is a dict with `id`, `question`, `database` (the path of a SQLite file under `data_dir`, written
    when it is not there), `gold` (the query that is right) and `form` (the kind of question).
    """
    if split not in SPLITS:
        raise ValueError(f"no split {split!r}; there are {', '.join(SPLITS)}")
    folder = Path(data_dir) / "generated" / split
    tasks = [task for number in range(SPLITS[split]) for task in _tasks_of(split, number, folder)]
    random.Random(seed).shuffle(tasks)
    return tasks[:limit]


def generate_split(split: str) -> list[Database]:
    """The databases of a split, without files."""
    return [_generate(split, number)[0] for number in range(SPLITS[split])]


def _generate(split: str, number: int) -> tuple[Database, random.Random]:
    """The database of that number, a third of them with soft deletes, and the source of its questions."""
    name = f"{split}_{number:02}"
    rng = random.Random(f"databases {name}")
    return generate_database(name, split, number % 3 == 0, rng), rng


def _tasks_of(split: str, number: int, folder: Path) -> list[dict[str, str]]:
    database, rng = _generate(split, number)
    path = str(write_database(database, folder))
    with closing(sqlite3.connect(":memory:")) as connection:
        create_tables(database, connection)
        questions = [
            _ask_clearly(form, database, connection, rng) for form in FORMS for _ in range(DRAWS[form])
        ]
    texts: dict[str, Question] = {question.text: question for question in questions if question}
    return [
        {
            "id": f"{database.name}-{i:02}",
            "question": q.text,
            "database": path,
            "gold": q.gold,
            "form": q.form,
        }
        for i, q in enumerate(texts.values())
    ]


def _ask_clearly(
    form: str, database: Database, connection: sqlite3.Connection, rng: random.Random
) -> Question | None:
    """A question of the form whose answer no other convention gives by chance."""
    for _ in range(TRIES):
        question = ask(form, database, rng)
        if question and is_clear(question, connection):
            return question
    return None


def is_clear(question: Question, connection: sqlite3.Connection) -> bool:
    """Whether the gold query returns something, and no query of another convention returns the same."""
    gold = run_query(connection, question.gold).rows
    if not gold or gold == ((0,),) or gold == ((None,),):
        return False
    others = [run_query(connection, sql).rows for sql in question.others.values()]
    ordered = is_ordered(question.gold)
    return not any(rows is not None and same_rows(rows, gold, ordered) for rows in others)
