"""A worker process of the benchmark: runs empty rollouts from a store until its input ends.

python -m benchmarks.stores.worker URL RUN_ID
"""

from __future__ import annotations

import asyncio
import sys

from lightning_core.plugins import load_plugins
from lightning_core.records.types import Attempt, Task
from lightning_core.runner.runner import Runner
from lightning_core.stores.base import Store
from lightning_core.tracing.scope import Scope
from lightning_core.trainer.parts import open_store

CONCURRENCY = 64


async def solve(task: Task) -> float:
    return 1.0


def scope_for(attempt: Attempt) -> Scope:
    return Scope(attempt.rollout.id, attempt.number, "http://127.0.0.1:1", "token")


def runner(store: Store, run_id: str) -> Runner:
    return Runner(solve, store, run_id=run_id, scope_for=scope_for, concurrency=CONCURRENCY)


async def serve(url: str, run_id: str) -> None:
    async with open_store(url, load_plugins()) as store:
        stop = asyncio.Event()
        serving = asyncio.create_task(runner(store, run_id).serve(stop))
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)
        stop.set()
        await serving


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:]))
