"""The cost of an operation: wall time, and CPU time on both sides of the store.

Measures the peer as well, in the peer's own environment, so nothing of ours is imported here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

BULK = 500
"""Rollouts that are enqueued in one go."""
CALLS_EACH = 5
"""Calls of one rollout that are read back together."""
REQUEST = "which customers bought twice? " * 130
"""Prompt of every recorded call."""


@dataclass(frozen=True, slots=True)
class Callers:
    """How many ask at once, and how often in all."""

    label: str
    callers: int
    count: int


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured in a round."""

    callers: tuple[Callers, ...] = (Callers("1 caller", 1, 500), Callers("16 callers", 16, 2000))
    bulks: int = 10
    wakes: int = 20


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of one operation, in milliseconds: the mean over all that were made."""

    wall_ms: float
    client_ms: float
    """CPU of the caller's process, all threads."""
    server_ms: float
    """CPU of the server; 0 where the store has none."""

    @property
    def cpu_ms(self) -> float:
        return self.client_ms + self.server_ms


Costs = dict[str, dict[str, Cost]]
"""Costs by the callers' label, then by operation."""


async def cost(
    server_cpu: Callable[[], float],
    one: Callable[[int], Awaitable[object]],
    count: int,
    callers: int = 1,
    each: int = 1,
) -> Cost:
    """Measures `one`, called with the numbers below `count` by so many callers, each waiting for its answer.

    `each`: how many operations one call stands for.
    """
    numbers = iter(range(count))

    async def caller() -> None:
        for number in numbers:
            await one(number)

    client, server, wall = time.process_time(), server_cpu(), time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(callers)))
    wall, server, client = (
        time.perf_counter() - wall,
        server_cpu() - server,
        time.process_time() - client,
    )
    share = 1000 / (count * each)
    return Cost(wall * share, client * share, server * share)
