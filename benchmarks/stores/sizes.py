"""The cost of an operation with 1,000 to 1,000,000 rollouts in the store.

All but those that are measured have ended, each with its reward, in steps of 64 of one run, as after a
long training.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from benchmarks.stores.sites import Site
from benchmarks.stores.timing import Cost, cost
from lightning_core.records.types import Attempt, Reward, Rollout, Status, Task
from lightning_core.stores.base import Store

SIZES = (1_000, 10_000, 100_000, 1_000_000)
STEP = 64
"""Rollouts of one training step."""
RUN = "long"
CHUNK = 5_000


def rollout(number: int, **given: object) -> Rollout:
    """The rollout at that place of the run, queued unless something else is `given`."""
    step, place = divmod(number, STEP)
    fields: dict[str, object] = {
        "id": f"{RUN}-t{step}-{place // 8}-{place % 8}",
        "run_id": RUN,
        "task": Task(input={"question": f"How many orders did customer {number} place in total?"}),
        "group_id": f"{RUN}-t{step}-{place // 8}",
        "step": step,
        "priority": -step,
    }
    return Rollout.model_validate({**fields, **given})


async def measure(
    site: Site, sizes: tuple[int, ...], count: int, repeats: int
) -> AsyncIterator[tuple[int, dict[str, Cost]]]:
    """The costs at each size, in each repeat; the store grows in between."""
    async with site.open() as store:
        there = 0
        for size in sizes:
            await fill(store, there, size)
            there = size
            for _ in range(repeats):
                yield size, await _costs(site, store, there, count)
                there += count


async def fill(store: Store, start: int, end: int) -> None:
    """Let the rollouts at these places have been run."""
    for first in range(start, end, CHUNK):
        numbers = range(first, min(first + CHUNK, end))
        ended = [
            rollout(n, status=Status.SUCCEEDED, attempts=1, reward=1.0, finished_at=1.0) for n in numbers
        ]
        await store.enqueue(ended)
        await store.add_rewards([Reward(rollout_id=one.id, attempt=1, value=1.0) for one in ended])


async def _costs(site: Site, store: Store, there: int, count: int) -> dict[str, Cost]:
    new = [rollout(there + i) for i in range(count)]
    held: list[Attempt] = []

    async def enqueue(number: int) -> None:
        await store.enqueue([new[number]])

    async def lease(number: int) -> None:
        held.extend(await store.lease("w", 1, 600.0, run_id=RUN))

    async def finish(number: int) -> None:
        await store.finish(held[number], reward=1.0)

    async def find(number: int) -> None:
        """One step of those that were there before, from all over the run."""
        found = await store.find_rollouts(RUN, step=(number * 7919) % (there // STEP))
        if len(found) != STEP:
            raise RuntimeError(f"a step of the benchmark has {len(found)} rollouts, not {STEP}")

    return {
        "enqueue": await cost(site.server_cpu, enqueue, count),
        "lease": await cost(site.server_cpu, lease, count),
        "finish": await cost(site.server_cpu, finish, count),
        "find the 64 of a step": await cost(site.server_cpu, find, count // 4),
    }
