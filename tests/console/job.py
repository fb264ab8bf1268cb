"""The script of `tests/cli/small_job.py` with a reward by chance, so that credit has something to compare."""

import random

import lightning_core as lightning
from tests.cli import small_job


async def solve(task: lightning.Task) -> float:
    await small_job.solve(task)
    return float(random.random() < 0.5)


def turned(records: lightning.Records) -> float | None:
    """For the what-if: a success is a failure, and the other way round."""
    return 1.0 - records.rollout.reward


if __name__ == "__main__":
    tasks = [{"question": f"List the boats with speed above {n}."} for n in range(9)]
    lightning.Trainer(
        agents=["writer"], algorithm=lightning.GRPO(group_size=4, tasks_per_step=2), steps=3
    ).fit(solve, train=tasks[:6], validation=tasks[6:])
