"""Demonstrations of hasty writers: those of the tiny policy, with slips in what the writer says.

Conventions are followed as in `recipes.tiny.corpus`. Then `share` of the writer's queries get a slip that the
database refuses, and half as many one that it does not (`slips`). Nothing in a prompt tells which. Checker
and rewriter make no slips: they read what the database said. So a refused query is mended as a rule, and the
final reward hardly tells of it.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

from examples.sql.databases import Database, create_tables, generate_database
from examples.sql.execution import describe_schema, run_query
from examples.sql.prompts import check_prompt, rewrite_prompt, write_prompt
from examples.sql.questions import ask
from recipes.sloppy.slips import REFUSED, RUNS, slip
from recipes.tiny.corpus import (
    AGENTS,
    SOFT_DELETE,
    Demonstration,
    any_question,
    draw,
    first_query,
    recover,
)

SHARE = 0.2
"""Share of the writer's queries that the database refuses."""

AFTER_REFUSAL = 0.6
"""Share of the queries to rewrite that the database refused; the others found no rows."""


def demonstrate(share: float, rng: random.Random) -> Iterator[Demonstration]:
    """Demonstrations without end, a few for each generated database; training names alone."""
    while True:
        database = generate_database("corpus", "train", rng.random() < SOFT_DELETE, rng)
        with closing(sqlite3.connect(":memory:")) as connection:
            create_tables(database, connection)
            desk = _Desk(database, connection, share, rng)
            for _ in range(6):
                yield desk.show(draw(AGENTS, rng))


@dataclass(frozen=True, slots=True)
class _Desk:
    """One database, and somebody in haste who asks it."""

    database: Database
    connection: sqlite3.Connection
    share: float
    rng: random.Random

    def show(self, agent: str) -> Demonstration:
        shows = {"write_query": self.writing, "check_query": self.checking, "rewrite_query": self.rewriting}
        return shows[agent]()

    def writing(self) -> Demonstration:
        question = any_question(self.database, self.rng)
        sql = first_query(question, self.database, self.rng)
        return Demonstration(write_prompt(self.schema, question.text), self.in_haste(sql))

    def checking(self) -> Demonstration:
        question = any_question(self.database, self.rng)
        sql = self.in_haste(first_query(question, self.database, self.rng))
        feedback = self.ask(sql)
        verdict = "ok" if feedback.startswith("Rows") else "rewrite"
        return Demonstration(check_prompt(question.text, sql, feedback), verdict)

    def rewriting(self) -> Demonstration:
        question = ask("active", self.database, self.rng)
        if question and self.rng.random() >= AFTER_REFUSAL:
            sql = first_query(question, self.database, self.rng)
            meant = recover(question, sql, self.rng)
        else:
            question = any_question(self.database, self.rng)
            meant = first_query(question, self.database, self.rng)
            sql = self.slipped(meant, refused=True)
        prompt = rewrite_prompt(self.schema, question.text, sql, self.ask(sql))
        return Demonstration(prompt, meant)

    @property
    def schema(self) -> str:
        return describe_schema(self.connection)

    def ask(self, sql: str) -> str:
        return run_query(self.connection, sql).feedback

    def in_haste(self, sql: str) -> str:
        luck = self.rng.random()
        return sql if luck >= 1.5 * self.share else self.slipped(sql, refused=luck < self.share)

    def slipped(self, sql: str, refused: bool) -> str:
        return slip(sql, self.database, self.connection, self.rng, REFUSED if refused else RUNS)
