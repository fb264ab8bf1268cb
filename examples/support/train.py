"""Train a real model, SmolLM2 with 135 M parameters, as all agents of a support team.

    agentlightning train examples/support/train.py

Four agents share the model: the triage agent and three desks. Only the last action earns a reward.
"""

import argparse

from lightning_autogen import attach

import lightning_core as lightning
from examples.support.app import PROMPTS, build_client, build_team, read_action
from examples.support.tasks import load_tasks

client = build_client()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--prompt", choices=PROMPTS, default="plain", help="one of app.py's, to compare with")
    parser.add_argument("--held-out", choices=("validation", "test"), default="validation")
    parser.add_argument("--held-out-tasks", type=int, default=40, help="how many (default: 40)")
    options = parser.parse_args()

    async def solve(task: lightning.Task) -> float:
        """Let a team decide; the reward is 1 for the right action."""
        team = attach(build_team(client, options.prompt))
        result = await team.run(task=str(task.input["message"]))
        return float(read_action(result) == task.input["action"])

    trainer = lightning.Trainer(
        model="smollm2",
        agents=["triage", "billing", "shipping", "account"],
        algorithm=lightning.GRPO(group_size=8, tasks_per_step=8, credit="relevance"),
        temperature=0.6,  # at 1, the default, so small a model is rarely right
        steps=30,
        group_by="action",
        checkpoint_every=30,
    )
    held_out = load_tasks(options.held_out, options.held_out_tasks)
    trainer.fit(solve, train=load_tasks("train"), validation=held_out)


if __name__ == "__main__":
    main()
