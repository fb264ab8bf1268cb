"""Work that a store's own thread does for callers on any event loop, and how they get its outcome."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True, eq=False, kw_only=True)
class Job:
    """One piece of work and the caller who waits for it. Made on the caller's loop."""

    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    future: asyncio.Future[Any] = field(init=False)
    result: Any = None
    error: BaseException | None = None

    def __post_init__(self) -> None:
        self.future = self.loop.create_future()

    def settle(self) -> None:
        """Hand the outcome to the caller; runs on the caller's loop."""
        if self.future.done():  # the caller was cancelled meanwhile
            return
        if self.error is None:
            self.future.set_result(self.result)
        else:
            self.future.set_exception(self.error)


def answer(jobs: Sequence[Job]) -> None:
    """Settle the jobs of each event loop in one wake-up of that loop. For the store's own thread."""
    by_loop: defaultdict[asyncio.AbstractEventLoop, list[Job]] = defaultdict(list)
    for job in jobs:
        by_loop[job.loop].append(job)
    for loop, its_jobs in by_loop.items():
        with suppress(RuntimeError):  # the loop is closed: nobody waits there any more
            loop.call_soon_threadsafe(_settle, its_jobs)


def _settle(jobs: Sequence[Job]) -> None:
    for job in jobs:
        job.settle()
