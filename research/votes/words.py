"""Word problems without training, answered by vote: the app runs eight times, and the answer of most counts.

That takes eight times the calls. Of answers that are as frequent the first one counts (self-consistency,
arXiv 2203.11171).
"""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter

from lightning_langgraph import LightningCallback

import lightning_core as lightning
from examples.words.app import build_graph
from examples.words.tasks import load_tasks

VOTES = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--held-out", choices=("validation", "test"), default="validation")
    parser.add_argument("--held-out-tasks", type=int, default=40, help="how many (default: 40)")
    options = parser.parse_args()
    graph = build_graph().with_config(callbacks=[LightningCallback()])

    async def solve(task: lightning.Task) -> float:
        """Let eight runs vote; the reward is 1 if the winner is the right number."""
        problem = str(task.input["problem"])
        states = await asyncio.gather(*(graph.ainvoke({"problem": problem}) for _ in range(VOTES)))
        answers = Counter(s["answer"] for s in states if not s["answer"].startswith("error"))
        return float(bool(answers) and answers.most_common(1)[0][0] == task.input["answer"])

    trainer = lightning.Trainer(
        model="smollm2", agents=["write_arithmetic"], temperature=0.6, steps=24, group_by="kind"
    )
    held_out = load_tasks(options.held_out, options.held_out_tasks)
    trainer.fit(solve, train=load_tasks("train"), validation=held_out)


if __name__ == "__main__":
    main()
