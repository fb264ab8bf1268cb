"""One who waits for a cancellation, and cancellations until one is heard."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

TRIES = 30
MOMENT = 1.0
"""How long a cancellation may take to be heard before another is made."""


async def cancel_until_heard(
    waiting: asyncio.Task[object], names: Sequence[str], cancel: Callable[[str], Awaitable[object]]
) -> list[str]:
    """Cancel one after another until the one who waits has heard; returns which were cancelled.

    What is cancelled before the store listens is not told, and nobody says when it does."""
    cancelled = []
    await asyncio.sleep(0.05)
    for name in names:
        await cancel(name)
        cancelled.append(name)
        if (await asyncio.wait([waiting], timeout=MOMENT))[0]:
            return cancelled
    raise AssertionError(f"of {len(names)} cancellations none was heard")
