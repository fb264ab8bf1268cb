"""Train two roles that answer the same kinds of questions: `sales`, and `audit`.

    agentlightning train research/policies/roles.py -- --conventions opposed

A question goes to one role. Their prompts differ in one word. With `--conventions same` both are right by the
conventions of `examples/sql`. With `opposed` the audit reads each question as other companies do: deleted
rows count, revenue is the price alone, large means above 50, and names don't decide ties.
"""

from __future__ import annotations

import argparse
import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import openai

import lightning_core as lightning
from examples.sql.app import clean_sql
from examples.sql.databases import create_tables, write_database
from examples.sql.execution import describe_schema, open_database, run_query
from examples.sql.prompts import Messages
from examples.sql.questions import ask
from examples.sql.reward import execution_match
from examples.sql.tasks import generate_split, is_clear

ROLES: Final = ("sales", "audit")
FORMS: Final = ("revenue", "kept_list", "kept_count", "top", "large")
"""Forms of questions that are read in more than one way."""
DRAWN: Final = 4
"""Questions of each form that are drawn for a database."""


def role_prompt(role: str, schema: str, question: str) -> Messages:
    """Returns the messages to a role."""
    system = f"Write one SQLite query for {role}."
    return [
        {"role": "system", "content": system},
        {"role": "user", "content": f"{schema}\nQuestion: {question}"},
    ]


def load_tasks(
    split: str, data: str | Path, conventions: str, limit: int | None = None
) -> list[dict[str, str]]:
    """Questions on the databases of a split of `examples/sql`, each for one role, with its gold query.

    Questions and roles are the same for both conventions: those that some reading answers with nothing are
    left out of both.
    """
    tasks: list[dict[str, str]] = []
    for database in generate_split(split):
        path = str(write_database(database, Path(data) / "generated" / split))
        draw = random.Random(f"roles {database.name}")
        with closing(sqlite3.connect(":memory:")) as connection:
            create_tables(database, connection)
            drawn = (ask(form, database, draw) for form in FORMS for _ in range(DRAWN))
            questions = {each.text: each for each in drawn if each and is_clear(each, connection)}
            for text, each in questions.items():
                other = next(iter(each.others.values()))
                if not run_query(connection, other).rows:
                    continue
                role = ROLES[len(tasks) % 2]
                gold = other if conventions == "opposed" and role == "audit" else each.gold
                task = {"id": f"{database.name}-{len(tasks)}", "role": role, "question": text, "gold": gold}
                tasks.append({**task, "database": path, "form": each.form})
    random.Random(0).shuffle(tasks)
    return tasks[:limit]


async def solve(task: lightning.Task) -> float:
    """Ask the task's role; the reward is 1 if its query returns what the gold query returns."""
    given: dict[str, Any] = task.input
    with open_database(given["database"]) as connection:
        schema = describe_schema(connection)
    async with openai.AsyncOpenAI(api_key="none") as client:
        with lightning.agent(given["role"]):
            reply = await client.chat.completions.create(
                model="policy",
                messages=role_prompt(given["role"], schema, given["question"]),  # type: ignore[arg-type]
                max_completion_tokens=64,
            )
    return execution_match(
        clean_sql(reply.choices[0].message.content or ""), given["gold"], given["database"]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--conventions", choices=("opposed", "same"), required=True)
    parser.add_argument("--held-out", choices=("validation", "test"), default="validation")
    parser.add_argument("--held-out-tasks", type=int, default=100, help="how many (default: 100)")
    options = parser.parse_args()
    train, held_out = (
        load_tasks(split, ".data/sql", options.conventions) for split in ("train", options.held_out)
    )
    trainer = lightning.Trainer(
        model="tiny",
        agents=list(ROLES),
        algorithm=lightning.GRPO(group_size=8, tasks_per_step=8, credit="uniform"),
        steps=24,
        group_by="role",
    )
    trainer.fit(solve, train=train, validation=held_out[: options.held_out_tasks])


if __name__ == "__main__":
    main()
