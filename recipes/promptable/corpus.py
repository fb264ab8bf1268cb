"""Demonstrations of writers who were told conventions, in sentences after the prompt of the tiny policy.

The writer's system message has a sentence for each of none to four topics, and sometimes a filler. The reply
follows the sentence on its topic. Where no sentence is on it, the reply follows a convention as often as in
`recipes.tiny.corpus`. Checker and rewriter are told nothing.
"""

from __future__ import annotations

import itertools
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing

from examples.sql.databases import Database, create_tables, generate_database
from examples.sql.execution import describe_schema
from examples.sql.prompts import write_prompt
from examples.sql.questions import ask
from recipes.promptable.sentences import TOPICS, draw_said, fillers, say
from recipes.tiny import corpus as usual
from recipes.tiny.corpus import SOFT_DELETE, Demonstration, any_question, first_query

OTHERS = 0.12
"""Demonstrations as the tiny policy was shown them, of all three agents."""
CONVENTIONS = 0.8
"""Share of the writer's questions about a form that hangs on a convention, where the database allows one."""
FILLER = 0.3
"""Prompts with a sentence that names no convention."""


def demonstrate(rng: random.Random) -> Iterator[Demonstration]:
    """Demonstrations without end, a few for each generated database; training names alone."""
    usually = usual.demonstrate(rng)
    while True:
        database = generate_database("corpus", "train", rng.random() < SOFT_DELETE, rng)
        with closing(sqlite3.connect(":memory:")) as connection:
            create_tables(database, connection)
            schema = describe_schema(connection)
        for _ in range(6):
            yield _told(database, schema, rng)
        yield from itertools.islice(usually, int(rng.random() < 6 * OTHERS / (1 - OTHERS)))


def _told(database: Database, schema: str, rng: random.Random) -> Demonstration:
    form = rng.choice(list(TOPICS))
    question = ask(form, database, rng) if rng.random() < CONVENTIONS else None
    question = question or any_question(database, rng)
    said = draw_said(rng)
    messages = write_prompt(schema, question.text)
    told = say(messages[0]["content"], said, rng)
    if rng.random() < FILLER:
        told = f"{told} {rng.choice(fillers())}"
    messages[0]["content"] = told
    choice = said.get(TOPICS.get(question.form, ""))
    if choice is None:
        return Demonstration(messages, first_query(question, database, rng))
    return Demonstration(messages, question.gold if choice == "gold" else question.others[choice])
