"""A real training job on a cluster, to be killed: `python tests/verl/job.py FOLDER STEPS`.

A bare OpenAI client plays two turns a rollout; rollouts of the next step go on while the update runs. It
writes a line for each rollout that ends.
"""

from __future__ import annotations

import sys
from pathlib import Path

import openai

import lightning_core as lightning
from lightning_core.backends.verl.backend import VerlBackend
from lightning_core.tracing.scope import current_scope

TASKS_PER_STEP, GROUP_SIZE, STALENESS = 2, 4, 1


def main(folder: Path, steps: int) -> None:
    """Train, or go on with it."""
    client = openai.AsyncOpenAI(api_key="none")

    async def solve(task: lightning.Task) -> float:
        text = str(task.input["question"])
        for name in ("writer", "critic"):
            with lightning.agent(name):
                reply = await client.chat.completions.create(
                    model="policy", messages=[{"role": "user", "content": text}], max_completion_tokens=6
                )
            text = reply.choices[0].message.content or ""
        scope = current_scope()
        assert scope is not None
        sys.stdout.write("rollout\n")
        sys.stdout.flush()
        return float(scope.rollout_id[-1]) / GROUP_SIZE

    lightning.Trainer(
        model="tiny",
        agents=["writer"],
        algorithm=lightning.GRPO(
            group_size=GROUP_SIZE, tasks_per_step=TASKS_PER_STEP, credit="uniform", staleness=STALENESS
        ),
        checkpoint_every=1,
        backend=VerlBackend("tiny", gpus=1),
        steps=steps,
        folder=folder,
        resume=(folder / "run.json").exists(),
        progress=False,
    ).fit(solve, train=[{"question": f"List the boats with speed above {n}."} for n in range(7)])


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
