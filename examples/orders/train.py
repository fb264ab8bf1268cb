"""Train a real model, SmolLM2 with 135 M parameters, to read orders into a form.

    agentlightning train examples/orders/train.py

Replies are held to the form's JSON Schema while they are sampled, and the update computes log-probabilities
under the same masks: what is learnt is the content, not the form.
"""

import argparse
from typing import Any

from lightning_openai_agents import attach

import lightning_core as lightning
from examples.orders.app import PROMPTS, build_agent, read_order
from examples.orders.tasks import load_tasks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--prompt", choices=PROMPTS, default="plain", help="one of app.py's, to compare with")
    parser.add_argument("--held-out", choices=("validation", "test"), default="validation")
    parser.add_argument("--held-out-tasks", type=int, default=40, help="how many (default: 40)")
    options = parser.parse_args()
    agent = attach(build_agent(options.prompt))

    async def solve(task: lightning.Task) -> float:
        """Read one order; the reward is the share of the form's fields that are right."""
        order = await read_order(str(task.input["text"]), agent)
        form: Any = task.input["form"]
        right = [order is not None and getattr(order, name) == value for name, value in form.items()]
        return float(sum(right) / len(right))

    trainer = lightning.Trainer(
        model="smollm2",
        agents=["clerk"],
        algorithm=lightning.GRPO(group_size=8, tasks_per_step=8, credit="relevance"),
        steps=20,
        checkpoint_every=20,
    )
    held_out = load_tasks(options.held_out, options.held_out_tasks)
    trainer.fit(solve, train=load_tasks("train"), validation=held_out)


if __name__ == "__main__":
    main()
