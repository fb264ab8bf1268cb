"""Train a real model, SmolLM2 with 135 M parameters, to write the arithmetic of word problems.

    agentlightning train examples/words/train.py

The app is ordinary: a short prompt in plain English with two examples, and a calculator. The model as it
comes gets few problems right.
"""

import argparse

from lightning_langgraph import LightningCallback

import lightning_core as lightning
from examples.words.app import PROMPTS, build_graph
from examples.words.tasks import load_tasks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--prompt", choices=PROMPTS, default="plain", help="one of app.py's, to compare with")
    parser.add_argument("--held-out", choices=("validation", "test"), default="validation")
    parser.add_argument("--held-out-tasks", type=int, default=40, help="how many (default: 40)")
    options = parser.parse_args()
    graph = build_graph(prompt=options.prompt).with_config(callbacks=[LightningCallback()])

    async def solve(task: lightning.Task) -> float:
        """Run the app once; the reward is 1 if its answer is the right number."""
        state = await graph.ainvoke({"problem": str(task.input["problem"])})
        return float(state["answer"] == task.input["answer"])

    trainer = lightning.Trainer(
        model="smollm2",
        agents=["write_arithmetic"],
        # kinds of problems that are not solved yet are drawn more often
        algorithm=lightning.GRPO(group_size=8, tasks_per_step=8, curriculum="kind"),
        temperature=0.6,  # at 1, the default, so small a model is rarely right
        steps=24,
        group_by="kind",
        checkpoint_every=24,
    )
    held_out = load_tasks(options.held_out, options.held_out_tasks)
    trainer.fit(solve, train=load_tasks("train"), validation=held_out)


if __name__ == "__main__":
    main()
