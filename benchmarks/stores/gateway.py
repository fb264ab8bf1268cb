"""The memory of a gateway process over tens of thousands of recorded calls.

Every rollout makes its share of the calls over a connection of its own, as apps do; every second one
streams.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import cycle, islice

from benchmarks.gateway import Server, connect, running_server
from benchmarks.gateway_server import ROLLOUTS
from benchmarks.processes import rss_bytes
from benchmarks.stores.sites import Site

CLIENTS = 8
SAMPLES = 50


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident memory of the gateway process, taken at even distances."""

    calls: list[int]
    """Recorded so far."""
    mib: list[float]

    def growth(self) -> float:
        """Bytes that each call of the second half has added: the slope of the line through them."""
        half = len(self.calls) // 2
        return 2**20 * slope(self.calls[half:], self.mib[half:])


def slope(x: list[int], y: list[float]) -> float:
    """Returns the slope of the line with the least squared error."""
    mid_x, mid_y = sum(x) / len(x), sum(y) / len(y)
    above = sum((one - mid_x) * (other - mid_y) for one, other in zip(x, y, strict=True))
    return above / sum((one - mid_x) ** 2 for one in x)


async def measure(site: Site, count: int) -> Memory:
    """Over `count` calls, at least `SAMPLES` of them."""
    with running_server(site.url) as server:
        rollouts = cycle(range(len(server.tokens)))
        calls, mib = [0], [rss_bytes(server.pid) / 2**20]
        each = max(count // SAMPLES // CLIENTS, 1)
        while calls[-1] < count:
            await asyncio.gather(*(_calls(server, one, each) for one in islice(rollouts, CLIENTS)))
            calls.append(calls[-1] + each * CLIENTS)
            mib.append(rss_bytes(server.pid) / 2**20)
        await _check(site, calls[-1])
        return Memory(calls, mib)


async def _check(site: Site, count: int) -> None:
    """Checks that all calls were recorded."""
    async with site.open() as store:
        recorded = 0
        for one in ROLLOUTS:
            recorded += len((await store.get_calls([one.id]))[one.id])
    if recorded != count:
        raise RuntimeError(f"of {count} calls {recorded} were recorded")


async def _calls(server: Server, rollout: int, count: int) -> None:
    client = await connect(server, stream=rollout % 2 == 1, rollout=rollout)
    for _ in range(count):
        await client.ask()
    client.close()
