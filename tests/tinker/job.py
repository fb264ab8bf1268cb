"""A real run through a server, to be killed: `python tests/tinker/job.py URL FOLDER STEPS`.

A bare OpenAI client makes one call a rollout. It writes a line for each rollout that ends.
"""

from __future__ import annotations

import sys
from pathlib import Path

import openai

import lightning_core as lightning
from lightning_core.tracing.scope import current_scope

TASKS_PER_STEP, GROUP_SIZE = 2, 4


def main(url: str, folder: Path, steps: int, ceiling: int | None = None) -> None:
    """Train, or go on with it; rewards differ within each group by the rollout's number. `ceiling` is that
    of the service's tokens."""
    client = openai.AsyncOpenAI(api_key="none")

    async def solve(task: lightning.Task) -> float:
        with lightning.agent("writer"):
            await client.chat.completions.create(
                model="policy",
                messages=[{"role": "user", "content": str(task.input["question"])}],
                max_completion_tokens=16,
            )
        scope = current_scope()
        assert scope is not None
        sys.stdout.write("rollout\n")
        sys.stdout.flush()
        return float(scope.rollout_id[-1]) / GROUP_SIZE

    lightning.Trainer(
        agents=["writer"],
        algorithm=lightning.GRPO(group_size=GROUP_SIZE, tasks_per_step=TASKS_PER_STEP),
        backend=lightning.TinkerBackend(
            "tiny", url=url, rank=8, reduction="mean", max_service_tokens=ceiling
        ),
        checkpoint_every=1,
        steps=steps,
        folder=folder,
        resume=(folder / "run.json").exists(),
        progress=False,
    ).fit(solve, train=[{"question": f"List the boats with speed above {n}."} for n in range(7)])


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
