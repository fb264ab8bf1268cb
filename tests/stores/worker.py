"""A worker process for the tests: works on a store and tells what it did, line by line.

`python -m tests.stores.worker URL JOB`, where the job is

lease    leases one rollout after another, finishes each and prints its id;
record   records calls "c0", "c1", … for ever and prints each once it is stored.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys

from lightning_core.plugins import load_plugins
from lightning_core.records.types import Call, Choice
from lightning_core.stores.base import Store


def tell(name: str) -> None:
    sys.stdout.write(f"{name}\n")
    sys.stdout.flush()


async def lease(store: Store) -> None:
    while attempts := await store.lease(f"worker-{os.getpid()}", 3, 60.0):
        for attempt in attempts:
            await store.finish(attempt, reward=1.0)
            tell(attempt.rollout.id)


async def record(store: Store) -> None:
    (attempt,) = await store.lease("recorder", 1, 60.0)
    for number in itertools.count():
        choice = Choice(completion_ids=list(range(200)), logprobs=[-0.5] * 200)
        call = Call(
            id=f"c{number}",
            rollout_id=attempt.rollout.id,
            attempt=attempt.number,
            agent="writer",
            trained=True,
            prompt_ids=list(range(1000)),
            choices=[choice],
            started_at=number,
            ended_at=number,
        )
        await store.add_call(call)
        tell(call.id)


async def main(url: str, job: str) -> None:
    opened: Store = load_plugins(only=[]).part("store", url.partition("://")[0])(url)
    async with opened as store:
        await {"lease": lease, "record": record}[job](store)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
