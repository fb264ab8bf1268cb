"""An agent that writes code which runs SQL, sees its error, and corrects itself; read as a stream of steps.

After huggingface/smolagents, docs/source/en/examples/text_to_sql.md: a CodeAgent without a name over one
`sql_engine` tool whose description holds the schema; with `stream_outputs` and
`use_structured_outputs_internally`, as in docs/source/en/reference/agents.md.
"""

from __future__ import annotations

import json
import sqlite3

from lightning_smolagents import attach
from smolagents import CodeAgent, FinalAnswerStep, LogLevel, OpenAIModel, tool

from lightning_core.records.types import UNNAMED
from tests.apps.stage import App, Role


@tool
def sql_engine(query: str) -> str:
    """Allows you to perform SQL queries on the table receipts, whose columns are customer_name and tip.

    Args:
        query: The query to perform. This should be correct SQL.
    """
    database = sqlite3.connect(":memory:")
    try:
        database.executescript("CREATE TABLE receipts (customer_name TEXT, tip REAL)")
        database.execute("INSERT INTO receipts VALUES ('Woodrow Wilson', 9.5)")
        return str(database.execute(query).fetchall())
    finally:
        database.close()


def run() -> str:
    agent = CodeAgent(
        tools=[sql_engine],
        model=OpenAIModel("gpt-4o"),
        use_structured_outputs_internally=True,
        verbosity_level=LogLevel.OFF,
    )
    attach(agent)  # the one line
    for step in agent.run("Who tipped most?", stream=True):
        last = step
    return str(last.output) if isinstance(last, FinalAnswerStep) else ""


def code(line: str) -> str:
    return json.dumps({"thought": "so", "code": line})


APP = App(
    "Text to SQL",
    (
        Role(
            UNNAMED,
            "sql_engine",
            [
                code("print(sql_engine('SELECT name FROM receipts'))"),
                code("final_answer(sql_engine('SELECT customer_name FROM receipts ORDER BY tip DESC'))"),
            ],
        ),
    ),
    run,
    "Woodrow Wilson",
    {UNNAMED: 2},
)
