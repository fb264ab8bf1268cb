"""A crew that answers questions with SQL: a writer, and a reviewer who is asked when the query fails.

    crew = build_crew("harbour.sqlite")
    schema = read_schema("harbour.sqlite")
    output = crew.kickoff(inputs={"schema": schema, "question": "Which boats are fast?"})
    print(find_query(str(output)))

Each query is run by the guardrail of its task, and what the database made of it goes on with it. The model
is the one named by SQL_MODEL, or the one given to `build_crew`.
"""

import os
from typing import Any

from crewai import LLM, Agent, BaseLLM, Crew, Process, Task
from crewai.tasks.conditional_task import ConditionalTask
from crewai.tasks.task_output import TaskOutput

from examples.sql.app import clean_sql
from examples.sql.execution import describe_schema, open_database, run_query

QUERY, RESULT = "SQL: ", "\nResult: "
"""Text before a query, and between it and the database's result."""


def build_crew(database: str, llm: BaseLLM | None = None) -> Crew:
    """The crew for one database; its inputs are `schema` and `question`."""
    model = llm or default_llm()
    writer = _agent("SQL writer", "Write one SQLite query.", model)
    reviewer = _agent("SQL reviewer", "Rewrite the SQLite query.", model)

    def run(output: TaskOutput) -> tuple[bool, Any]:
        sql = clean_sql(output.raw)
        with open_database(database) as connection:
            return True, f"{QUERY}{sql}{RESULT}{run_query(connection, sql).feedback}"

    work: dict[str, Any] = {
        "description": "{schema}\nQuestion: {question}",
        "expected_output": "One SQLite query.",
        "guardrail": run,
    }
    write = Task(agent=writer, **work)
    review = ConditionalTask(agent=reviewer, condition=has_failed, **work)
    return Crew(agents=[writer, reviewer], tasks=[write, review], process=Process.sequential)


def default_llm() -> LLM:
    """The model named by SQL_MODEL, at the endpoint of OPENAI_BASE_URL when that is set."""
    return LLM(
        model=os.environ.get("SQL_MODEL", "gpt-5-mini"),
        api_key=os.environ.get("OPENAI_API_KEY", "none"),
        max_completion_tokens=64,
    )


def read_schema(database: str) -> str:
    """The tables of a database, one in a line."""
    with open_database(database) as connection:
        return describe_schema(connection)


def has_failed(output: TaskOutput) -> bool:
    """Whether the query found no rows, or did not run."""
    return not output.raw.rpartition(RESULT)[2].startswith("Rows")


def find_query(answer: str) -> str:
    """The query in the crew's answer."""
    return answer.rpartition(RESULT)[0].removeprefix(QUERY)


def _agent(role: str, goal: str, model: BaseLLM) -> Agent:
    return Agent(role=role, goal=goal, backstory="You know SQLite.", llm=model)
