"""Improve the prompt of the SQL agent's writer, while its model stays at an endpoint of its own.

    agentlightning serve tiny &
    export OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=local
    agentlightning train examples/sql/improve.py

Any other endpoint will do. `--reflection URL#MODEL` after `--` rewrites the prompt with a second model.
"""

import argparse

import lightning_core as lightning
from examples.sql.prompts import write_prompt
from examples.sql.tasks import load_tasks
from examples.sql.train import solve


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--reflection", help="URL#MODEL of the model that rewrites the prompt")
    parser.add_argument("--budget", type=int, default=400, help="rollouts (default: 400)")
    parser.add_argument("--tasks", type=int, default=40, help="training and held-out tasks (default: 40)")
    options = parser.parse_args()
    search: lightning.Bootstrap | lightning.GEPA = lightning.Bootstrap(budget=options.budget)
    if options.reflection:
        search = lightning.GEPA(reflection=options.reflection, budget=options.budget)
    train, held_out = (load_tasks(split, ".data/sql")[: options.tasks] for split in ("train", "validation"))
    trainer = lightning.Trainer(
        prompts={"write_query": write_prompt("", "")[0]["content"]}, algorithm=search, group_by="form"
    )
    trainer.fit(solve, train=train, validation=held_out)


if __name__ == "__main__":
    main()
