"""The cost of waiting for thousands of rollouts while nothing happens: CPU, and statements to the store."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from benchmarks.stores.operations import rollouts
from benchmarks.stores.sites import Site


@dataclass(frozen=True, slots=True)
class Idle:
    """Cost of one waiter, in a second in which nothing happens."""

    client_ms: float
    """CPU of the waiter's process."""
    server_ms: float
    """CPU of the store's server."""
    statements: float | None
    """Sent to the database; None where there is none."""


async def measure(site: Site, count: int, seconds: float) -> Idle:
    """Wait for `count` rollouts that nobody runs."""
    async with site.open() as store:
        asked = rollouts("waiting", count)
        await store.enqueue(asked)
        waiting = asyncio.create_task(store.wait_finished([one.id for one in asked], 60 + seconds))
        await asyncio.sleep(1.0)  # by then it has looked at them once
        statements = await site.statements(store)
        client, server = time.process_time(), site.server_cpu()
        await asyncio.sleep(seconds)
        client, server = time.process_time() - client, site.server_cpu() - server
        after = await site.statements(store)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    made = None if after is None or statements is None else (after - statements) / seconds
    return Idle(1000 * client / seconds, 1000 * server / seconds, made)
