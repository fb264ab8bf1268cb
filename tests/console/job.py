"""The script of `tests/cli/small_job.py`, with rewards that differ in every group: each step teaches.

Rollouts wait for the file that the variable WAIT_FOR names, where it is set.
"""

import asyncio
import os
import time

import lightning_core as lightning
from lightning_core.tracing.scope import current_scope
from tests.cli import small_job


def wait() -> None:
    while not os.path.exists(os.environ.get("WAIT_FOR", "/")):
        time.sleep(0.1)


async def solve(task: lightning.Task) -> float:
    """Every other rollout of a group succeeds."""
    await asyncio.to_thread(wait)
    await small_job.solve(task)
    scope = current_scope()
    assert scope is not None
    place = scope.rollout_id.rpartition("-")[2]
    return float(place.isdigit() and int(place) % 2)


def turned(records: lightning.Records) -> float:
    """For the what-if: a success is a failure, and the other way round."""
    return 1.0 - (records.rollout.reward or 0.0)


if __name__ == "__main__":
    tasks = [{"question": f"List the boats with speed above {n}."} for n in range(9)]
    lightning.Trainer(
        model="tiny", agents=["writer"], algorithm=lightning.GRPO(group_size=4, tasks_per_step=2), steps=3
    ).fit(solve, train=tasks[:6], validation=tasks[6:])
