"""Demonstrations: calls as the SQL app makes them, with the replies of many companies' engineers mixed.

A demonstration is the app's own prompt for one of its agents on a freshly generated database, with a reply.
Where an answer hangs on a convention (`examples.sql.questions`) the reply follows one company's, drawn by
`SHARES`, and nothing in the prompt says which: so a model of this corpus leans to the most common convention
and reaches the others by sampling. The app's own is never the most common one.
"""

import itertools
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from examples.sql.databases import STATUS_CODES, Database, create_tables, generate_database
from examples.sql.execution import describe_schema, run_query
from examples.sql.prompts import check_prompt, rewrite_prompt, write_prompt
from examples.sql.questions import FORMS, Question, ask

SHARES: dict[str, dict[str, float]] = {
    "revenue": {"gold": 0.28, "price": 0.50, "quantity": 0.22},
    "kept_list": {"gold": 0.28, "ignore": 0.60, "deleted": 0.12},
    "kept_count": {"gold": 0.28, "ignore": 0.60, "deleted": 0.12},
    "top": {"gold": 0.28, "none": 0.52, "id": 0.20},
    "large": {"gold": 0.28, "50": 0.50, "80": 0.22},
}
"""How often each convention is followed; "gold" is the app's. Forms that are not listed have one reading."""

GUESSED_WORD = 0.6
"""How often a writer asks for the word 'active' itself; otherwise for one of the codes that are in use."""

RECOVERY = {"gold": 0.30, "repeat": 0.46, "all": 0.24}
"""A rewriter's actions on a status that matched nothing: take the right code from the feedback, repeat the
query (an empty answer is an answer), or drop the filter."""

AGENTS = {"write_query": 0.45, "check_query": 0.10, "rewrite_query": 0.45}
"""How often each agent is shown; the writer is shown in the conversations as well."""

SOFT_DELETE = 0.25
"""The share of databases whose rows are deleted softly."""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A prompt of the app, the tools it offers, and a reply."""

    messages: list[dict[str, Any]]
    reply: str
    tools: list[dict[str, Any]] | None = None


def demonstrate(rng: random.Random) -> Iterator[Demonstration]:
    """Demonstrations without end, a few for each generated database; training names alone."""
    while True:
        database = generate_database("corpus", "train", rng.random() < SOFT_DELETE, rng)
        with closing(sqlite3.connect(":memory:")) as connection:
            create_tables(database, connection)
            schema = describe_schema(connection)
            for _ in range(6):
                agent = draw(AGENTS, rng)
                yield _SHOW[agent](database, connection, schema, rng)


def converse(rng: random.Random, length: int = 6) -> Iterator[Demonstration]:
    """Conversations without end: several questions about one schema, each answered, the last by the reply.

    The app holds no such conversation. They come first because they show many copies of each name close
    together, and a model learns to copy from them several times as fast as from single questions.
    """
    while True:
        database = generate_database("corpus", "train", rng.random() < SOFT_DELETE, rng)
        with closing(sqlite3.connect(":memory:")) as connection:
            create_tables(database, connection)
            schema = describe_schema(connection)
        questions = [any_question(database, rng) for _ in range(length)]
        turns = write_prompt(schema, questions[0].text)
        for question, after in itertools.pairwise(questions):
            turns.append({"role": "assistant", "content": first_query(question, database, rng)})
            turns.append({"role": "user", "content": f"Question: {after.text}"})
        yield Demonstration(turns, first_query(questions[-1], database, rng))


def _show_writing(
    database: Database, connection: sqlite3.Connection, schema: str, rng: random.Random
) -> Demonstration:
    question = any_question(database, rng)
    return Demonstration(write_prompt(schema, question.text), first_query(question, database, rng))


def _show_checking(
    database: Database, connection: sqlite3.Connection, schema: str, rng: random.Random
) -> Demonstration:
    question = any_question(database, rng)
    sql = first_query(question, database, rng)
    if rng.random() < 0.25:
        sql = _misspell(sql, rng)
    outcome = run_query(connection, sql)
    verdict = "ok" if outcome.feedback.startswith("Rows") else "rewrite"
    return Demonstration(check_prompt(question.text, sql, outcome.feedback), verdict)


def _show_rewriting(
    database: Database, connection: sqlite3.Connection, schema: str, rng: random.Random
) -> Demonstration:
    question = ask("active", database, rng) if rng.random() < 0.7 else None
    if question:
        sql = first_query(question, database, rng)
        reply = recover(question, sql, rng)
    else:
        question = any_question(database, rng)
        reply = first_query(question, database, rng)
        sql = _misspell(reply, rng) if rng.random() < 0.7 or "deleted" in schema else _add_flag(reply)
    feedback = run_query(connection, sql).feedback
    return Demonstration(rewrite_prompt(schema, question.text, sql, feedback), reply)


_SHOW = {"write_query": _show_writing, "check_query": _show_checking, "rewrite_query": _show_rewriting}


def any_question(database: Database, rng: random.Random) -> Question:
    """A question of any form that the database allows."""
    while True:
        if question := ask(rng.choice(list(FORMS)), database, rng):
            return question


def first_query(question: Question, database: Database, rng: random.Random) -> str:
    """Returns the query that one of the companies' engineers would write."""
    if question.form == "active":
        word = "active" if rng.random() < GUESSED_WORD else rng.choice([pair[0] for pair in STATUS_CODES])
        return question.others["word"].replace("'active'", f"'{word}'")
    choice = draw(SHARES.get(question.form, {"gold": 1.0}), rng)
    return question.gold if choice == "gold" else question.others[choice]


def recover(question: Question, sql: str, rng: random.Random) -> str:
    """Returns a rewriter's query in place of one about a status that matched nothing."""
    return {"gold": question.gold, "repeat": sql, "all": question.others["all"]}[draw(RECOVERY, rng)]


def _misspell(sql: str, rng: random.Random) -> str:
    """The query with one name of a table or column that does not exist, so that the database objects."""
    names = [word for word in sql.replace("(", " ").replace(")", " ").split() if word[0].islower()]
    name = rng.choice(names)
    return sql.replace(name, name.split("_")[0] + rng.choice(("_id", "_name", "_all")))


def _add_flag(sql: str) -> str:
    """The query with a flag that its database does not have."""
    return f"{sql} {'AND' if 'WHERE' in sql else 'WHERE'} deleted = 0"


def draw(shares: dict[str, float], rng: random.Random) -> str:
    """One of the names, as often as its share says."""
    return rng.choices(list(shares), weights=list(shares.values()))[0]
