"""Train the writer and the rewriter of the SQL agent; its checker stays as it is.

    agentlightning train examples/sql/train.py

With `--set air=true` a query that the database refuses costs its call a little; see docs/air.md.
`--data PATH` after `--` takes a folder in Spider's layout instead of the generated databases.
"""

import argparse

from lightning_langgraph import LightningCallback
from opentelemetry import trace
from opentelemetry.instrumentation.sqlite3 import SQLite3Instrumentor
from opentelemetry.sdk.trace import TracerProvider

import lightning_core as lightning
from examples.sql.app import build_graph
from examples.sql.reward import execution_match
from examples.sql.spider import load_spider
from examples.sql.tasks import load_tasks

trace.set_tracer_provider(TracerProvider())  # each query becomes a span, refused or not
SQLite3Instrumentor().instrument()
graph = build_graph().with_config(callbacks=[LightningCallback()])


async def solve(task: lightning.Task) -> float:
    """Run the agent once; the reward is 1 if its query returns what the gold query returns."""
    question, database = str(task.input["question"]), str(task.input["database"])
    state = await graph.ainvoke({"question": question, "database": database})
    return execution_match(state["sql"], str(task.input["gold"]), database)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", help="a folder in Spider's layout")
    parser.add_argument("--held-out", choices=("validation", "test"), default="validation")
    parser.add_argument("--held-out-tasks", type=int, default=100, help="how many (default: 100)")
    options = parser.parse_args()
    if options.data:
        train, held_out = (load_spider(split, options.data) for split in ("train", "validation"))
    else:
        train, held_out = (load_tasks(split, ".data/sql") for split in ("train", options.held_out))
    trainer = lightning.Trainer(
        model="tiny",
        agents=["write_query", "rewrite_query"],
        algorithm=lightning.GRPO(group_size=8, tasks_per_step=8, credit="relevance"),
        steps=60,
        group_by="form",
    )
    trainer.fit(solve, train=train, validation=held_out[: options.held_out_tasks])


if __name__ == "__main__":
    main()
