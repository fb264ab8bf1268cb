"""Train the solver of word problems to use its calculator well.

    agentlightning train examples/calc/train.py

`--data PATH` after `--` takes a folder in the layout of Calc-gsm8k instead of the generated problems.
"""

import argparse
from pathlib import Path

from lightning_autogen import attach

import lightning_core as lightning
from examples.calc.app import build_agent, build_client
from examples.calc.calcx import load_calcx
from examples.calc.reward import exact_match
from examples.calc.tasks import load_tasks

client = build_client()


async def solve(task: lightning.Task) -> float:
    """Let a solver solve the problem; the reward is 1 if its answer is the right number."""
    solver = attach(build_agent(client))
    run = await solver.run(task=str(task.input["question"]))
    return exact_match(run.messages[-1].to_text(), float(str(task.input["result"])))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", help="a folder in the layout of Calc-gsm8k")
    parser.add_argument("--held-out", choices=("validation", "test"), default="validation")
    parser.add_argument("--held-out-tasks", type=int, default=100, help="how many (default: 100)")
    options = parser.parse_args()
    splits = ("train", options.held_out)
    if options.data:
        train, held_out = (load_calcx(split, options.data) for split in splits)
    else:
        train, held_out = (load_tasks(split) for split in splits)
    trainer = lightning.Trainer(
        model=Path(__file__).parent / "policy",
        agents=["solver"],
        algorithm=lightning.GRPO(group_size=8, tasks_per_step=8, credit="relevance"),
        steps=40,
        group_by="form",
    )
    trainer.fit(solve, train=train, validation=held_out[: options.held_out_tasks])


if __name__ == "__main__":
    main()
