"""The operations of a store, each by one caller that waits for every answer, and by many at once.

A call has 1,000 prompt and 200 completion ids with logprobs and a request of 4 KB. How soon a waiter wakes
is measured over a second connection: the time from another connection's `finish` to the waiter's return.
"""

from __future__ import annotations

import asyncio
import time

from benchmarks.stores.sites import Site
from benchmarks.stores.timing import BULK, CALLS_EACH, REQUEST, Callers, Cost, Costs, Plan, cost
from lightning_core.records.types import Attempt, Call, Choice, Rollout, Task
from lightning_core.stores.base import Store

CALL = Call(
    id="c",
    rollout_id="r0",
    attempt=1,
    agent="writer",
    trained=True,
    request={"messages": [{"role": "user", "content": REQUEST}]},
    prompt_ids=list(range(1000)),
    choices=[Choice(completion_ids=list(range(200)), logprobs=[-0.5] * 200, message={"content": "x" * 800})],
    started_at=1.0,
    ended_at=2.0,
)


def rollouts(run_id: str, count: int) -> list[Rollout]:
    return [
        Rollout(id=f"{run_id}-t0-{i}", run_id=run_id, task=Task(input={"i": i}), group_id="g", step=0)
        for i in range(count)
    ]


async def measure(site: Site, plan: Plan) -> tuple[Costs, list[float]]:
    """The costs of a round, and in milliseconds how long each waiter took to wake."""
    async with site.open() as store:
        await store.enqueue(rollouts("warm", 10))
        found = {one.label: await _queue(site, store, one) for one in plan.callers}
        bulks = [rollouts(f"bulk{number}", BULK) for number in range(plan.bulks)]
        cheap = await cost(
            site.server_cpu, lambda number: store.enqueue(bulks[number]), len(bulks), each=BULK
        )
        found[plan.callers[0].label]["enqueue, 500 at once"] = cheap
        return found, await _wakes(site, store, plan.wakes)


async def _queue(site: Site, store: Store, asked: Callers) -> dict[str, Cost]:
    run_id = f"of-{asked.callers}"
    new = rollouts(run_id, asked.count)
    held: list[Attempt] = []

    async def enqueue(number: int) -> None:
        await store.enqueue([new[number]])

    async def lease(number: int) -> None:
        held.extend(await store.lease("w", 1, 600.0, run_id=run_id))

    async def heartbeat(number: int) -> None:
        await store.heartbeat([held[number]], 600.0)

    async def record(number: int) -> None:
        owner = held[number // CALLS_EACH].rollout.id
        await store.add_call(CALL.model_copy(update={"id": f"c{number}", "rollout_id": owner}))

    async def read(number: int) -> None:
        await store.get_calls([held[number].rollout.id])

    async def finish(number: int) -> None:
        await store.finish(held[number], reward=1.0)

    found = {}
    steps = {"enqueue": enqueue, "lease": lease, "heartbeat": heartbeat, "record a call": record}
    for name, step in steps.items():
        found[name] = await cost(site.server_cpu, step, asked.count, asked.callers)
    found["read 5 calls"] = await cost(site.server_cpu, read, asked.count // CALLS_EACH, asked.callers)
    found["finish"] = await cost(site.server_cpu, finish, asked.count, asked.callers)
    return found


async def _wakes(site: Site, store: Store, count: int) -> list[float]:
    """Milliseconds from `finish` on one connection to the end of `wait_finished` on another."""
    await store.enqueue(rollouts("wake", count))
    found = []
    if not site.shared:
        return [await _wake(store, store) for _ in range(count)]
    async with site.open() as other:
        for _ in range(count):
            found.append(await _wake(store, other))
    return found


async def _wake(store: Store, other: Store) -> float:
    (attempt,) = await store.lease("w", 1, 600.0, run_id="wake")
    waiting = asyncio.create_task(other.wait_finished([attempt.rollout.id]))
    await asyncio.sleep(0.05)  # until it waits
    begun = time.perf_counter()
    await store.finish(attempt, reward=1.0)
    await waiting
    return 1000 * (time.perf_counter() - begun)
