"""Improve the prompts of an example's agents, while their model stays at an endpoint of its own.

    agentlightning serve examples/calc/policy &
    export OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=none
    agentlightning train examples/improve.py -- calc

`sql` is LangGraph's example, `calc` AutoGen's, `rag` that of the OpenAI Agents SDK, and `crew` CrewAI's. Any
other endpoint will do. Their prompts are found in the calls of a few rollouts. `--reflection URL#MODEL`
rewrites them with a second model. A run that was killed goes on with `--resume`, before the `--`.
"""

import argparse
from importlib import import_module
from types import MappingProxyType
from typing import Final

import lightning_core as lightning

DATA: Final = MappingProxyType(
    {"sql": (".data/sql",), "calc": (), "rag": (".data/rag",), "crew": (".data/sql",)}
)
"""Where the tasks of each example lie."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("example", choices=DATA)
    parser.add_argument("--reflection", help="URL#MODEL of the model that rewrites the prompts")
    parser.add_argument("--budget", type=int, default=400, help="rollouts (default: 400)")
    parser.add_argument("--tasks", type=int, default=40, help="training and held-out tasks (default: 40)")
    options = parser.parse_args()
    search: lightning.Bootstrap | lightning.GEPA = lightning.Bootstrap(budget=options.budget)
    if options.reflection:
        search = lightning.GEPA(reflection=options.reflection, budget=options.budget)
    script = import_module(f"examples.{options.example}.train")  # the other frameworks may be missing
    train, held_out = (
        script.load_tasks(split, *DATA[options.example])[: options.tasks] for split in ("train", "validation")
    )
    trainer = lightning.Trainer(prompts="all", algorithm=search, group_by="form")
    trainer.fit(script.solve, train=train, validation=held_out)


if __name__ == "__main__":
    main()
