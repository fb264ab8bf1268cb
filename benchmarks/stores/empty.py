"""Empty rollouts per second, end to end: enqueued, leased, run by a Runner, finished, heard of by a waiter.

Workers are processes of their own, started beforehand. A memory store is in one process by its nature, so
there its one worker shares the process of the waiter.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from benchmarks.processes import cpu_seconds
from benchmarks.stores.operations import rollouts
from benchmarks.stores.sites import Site
from benchmarks.stores.worker import runner
from lightning_core.stores.base import Store

RUN = "empty"
WARM_UP = 20


@dataclass(frozen=True, slots=True)
class Pace:
    """How the rollouts of one setting went."""

    per_second: float
    workers_ms: float
    """CPU of the workers for each rollout, and of the waiter where it is in their process."""
    server_ms: float
    """CPU of the store's server for each rollout."""


async def measure(site: Site, workers: int, count: int) -> Pace:
    """Measures the pace of `count` rollouts, all enqueued at once."""
    async with site.open() as store:
        if not site.shared:
            async with _serving(store):
                return await _run(site, store, count, time.process_time)
        with processes(site, workers) as pids:
            return await _run(site, store, count, lambda: sum(map(cpu_seconds, pids)))


async def _run(site: Site, store: Store, count: int, cpu: Callable[[], float]) -> Pace:
    await _round(store, "warm", WARM_UP)
    workers, server, wall = cpu(), site.server_cpu(), time.perf_counter()
    await _round(store, "r", count)
    wall, server, workers = time.perf_counter() - wall, site.server_cpu() - server, cpu() - workers
    return Pace(count / wall, 1000 * workers / count, 1000 * server / count)


async def _round(store: Store, prefix: str, count: int) -> None:
    asked = [one.model_copy(update={"id": f"{prefix}-{one.id}"}) for one in rollouts(RUN, count)]
    await store.enqueue(asked)
    finished = await store.wait_finished([one.id for one in asked])
    if any(one.reward != 1.0 for one in finished):
        raise RuntimeError("a rollout of the benchmark ended without the reward that its worker gave")


@asynccontextmanager
async def _serving(store: Store) -> AsyncIterator[None]:
    stop = asyncio.Event()
    serving = asyncio.create_task(runner(store, RUN).serve(stop))
    yield
    stop.set()
    await serving


@contextmanager
def processes(site: Site, count: int) -> Iterator[list[int]]:
    """The ids of so many worker processes that are connected and wait for work."""
    command = [sys.executable, "-m", "benchmarks.stores.worker", site.url, RUN]
    started = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(count)
    ]
    try:
        for process in started:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise RuntimeError("a worker of the benchmark did not start: its error stands above")
        yield [process.pid for process in started]
    finally:
        for process in started:
            process.communicate()  # closes its input, which ends it
