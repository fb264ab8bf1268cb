"""What the stores and the runner cost: operations per second and CPU milliseconds per operation.

    python -m benchmarks.store

A call has 1,000 prompt and 200 completion ids with logprobs and a request of 4 KB. "one" is a single
caller that waits for each answer, "64" are 64 callers at once, "full" is with 50,000 ended rollouts.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from lightning_core.runner import Runner
from lightning_core.stores.base import Store
from lightning_core.stores.memory import MemoryStore
from lightning_core.stores.sqlite import SqliteStore
from lightning_core.tracing.scope import Scope
from lightning_core.types import Attempt, Call, Choice, Rollout, Task

Result = dict[str, float]
CALL = Call(
    id="c",
    rollout_id="r0",
    attempt=1,
    agent="writer",
    trained=True,
    request={"messages": [{"role": "user", "content": "which customers bought twice? " * 130}]},
    prompt_ids=list(range(1000)),
    choices=[Choice(completion_ids=list(range(200)), logprobs=[-0.5] * 200, message={"content": "x" * 800})],
    started_at=1.0,
    ended_at=2.0,
)


def rollouts(name: str, count: int) -> list[Rollout]:
    return [
        Rollout(id=f"{name}{i}", run_id=name, task=Task(input={"i": i}), group_id="g", step=0)
        for i in range(count)
    ]


async def measure(count: int, callers: int, one: Callable[[int], Awaitable[object]]) -> Result:
    numbers = iter(range(count))

    async def caller() -> None:
        for number in numbers:
            await one(number)

    cpu, wall = time.process_time(), time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(callers)))
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return {"per_second": count / wall, "cpu_ms": 1000 * cpu / count}


async def measure_calls(store: Store) -> dict[str, Result]:
    async def add(number: int) -> None:
        await store.add_call(CALL.model_copy(update={"id": f"c{number}", "rollout_id": f"a{number % 100}"}))

    async def read(number: int) -> None:
        await store.get_calls([f"a{number}"])

    await store.enqueue(rollouts("a", 100))
    await store.lease("w", 100, 60.0, run_id="a")
    return {
        "add a call, one": await measure(1000, 1, add),
        "add a call, 64": await measure(4000, 64, add),
        "read 40 calls": await measure(100, 1, read),
    }


async def measure_queue(store: Store) -> dict[str, Result]:
    async def enqueue(number: int) -> None:
        await store.enqueue(rollouts(f"e{number}-", 500))

    found = {"enqueue 500": await measure(20, 1, enqueue)}
    for label, callers in (("one", 1), ("64", 64)):
        await store.enqueue(rollouts(label, 1000))
        found[f"lease and finish, {label}"] = await measure(1000, callers, cycle(store, label))
    await store.enqueue(rollouts("old", 50_000))
    while attempts := await store.lease("w", 5000, 600.0, run_id="old"):
        await asyncio.gather(*(store.finish(attempt, reward=1.0) for attempt in attempts))
    await store.enqueue(rollouts("full", 1000))
    found["lease and finish, one, full"] = await measure(1000, 1, cycle(store, "full"))
    return found


def cycle(store: Store, run_id: str) -> Callable[[int], Awaitable[object]]:
    async def lease_and_finish(number: int) -> None:
        (attempt,) = await store.lease("w", 1, 60.0, run_id=run_id)
        await store.finish(attempt, reward=1.0)

    return lease_and_finish


async def measure_runner(store: Store) -> dict[str, Result]:
    async def solve(task: Task) -> float:
        return 1.0

    found = {}
    for label, function in (("async", solve), ("sync", lambda task: 1.0)):
        asked = rollouts(label, 2000)
        await store.enqueue(asked)
        runner = Runner(function, store, run_id=label, scope_for=scope_for, concurrency=64)
        stop = asyncio.Event()
        cpu, wall = time.process_time(), time.perf_counter()
        serving = asyncio.create_task(runner.serve(stop))
        await store.wait_finished([one.id for one in asked])
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        stop.set()
        await serving
        found[f"empty rollouts, {label}, 64"] = {"per_second": 2000 / wall, "cpu_ms": 1000 * cpu / 2000}
    return found


def scope_for(attempt: Attempt) -> Scope:
    return Scope(attempt.rollout.id, attempt.number, "http://127.0.0.1:1", "token")


async def measure_all() -> dict[str, dict[str, Result]]:
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for store in (MemoryStore(), SqliteStore(f"sqlite:///{folder}/runs.db")):
            async with store:
                name = type(store).__name__
                found[name] = {
                    **await measure_calls(store),
                    **await measure_queue(store),
                    **await measure_runner(store),
                }
    return found


def main() -> None:
    found = asyncio.run(measure_all())
    for store, rows in found.items():
        print(f"{store:34} {'per second':>11} {'CPU ms each':>12}")
        for name, result in rows.items():
            print(f"  {name:32} {result['per_second']:11,.0f} {result['cpu_ms']:12.3f}")
    path = Path("benchmarks/results/store.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
