"""Train the writer of a crew; its reviewer stays as it is.

    agentlightning train examples/crew/train.py

What this leaves behind, but for the run, lies in `.data`. CrewAI alone adds something elsewhere: its
`credentials`, in `~/.local/share/crewai`, which it writes when it is imported, whatever one says.
"""

import argparse
import logging
from pathlib import Path

from lightning_crewai import attach

import lightning_core as lightning
from examples.crew import quiet  # noqa: F401  # first of all that import CrewAI
from examples.crew.app import build_crew, default_llm, find_query, read_schema
from examples.crew.policy import write_policy
from examples.sql.reward import execution_match
from examples.sql.tasks import load_tasks

llm = default_llm()


async def solve(task: lightning.Task) -> float:
    """Kick the crew off once; the reward is 1 if its query returns what the gold query returns."""
    question, database = str(task.input["question"]), str(task.input["database"])
    crew = build_crew(database, llm)
    attach(crew)
    output = await crew.akickoff(inputs={"schema": read_schema(database), "question": question})
    return execution_match(find_query(str(output)), str(task.input["gold"]), database)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--held-out", choices=("validation", "test"), default="validation")
    parser.add_argument("--held-out-tasks", type=int, default=100, help="how many (default: 100)")
    options = parser.parse_args()
    data = Path(".data/crew").absolute()
    # which warns at each call that it only estimates the length of the prompt
    logging.getLogger("crewai.llms.base_llm").setLevel(logging.ERROR)
    held_out = load_tasks(options.held_out, ".data/sql", limit=options.held_out_tasks)
    trainer = lightning.Trainer(
        model=write_policy(data),
        agents=["SQL writer"],
        algorithm=lightning.GRPO(group_size=8, tasks_per_step=8, credit="relevance"),
        steps=40,
        group_by="form",
    )
    trainer.fit(solve, train=load_tasks("train", ".data/sql"), validation=held_out)


if __name__ == "__main__":
    main()
