"""What is under way: for how long each rollout has been seen running, and how long others of its step
took."""

from __future__ import annotations

import time
from collections.abc import Sequence

from lightning_core.stores.base import Store
from lightning_core.types import Rollout, Status

LONG = 30.0
"""Seconds from which on a rollout is compared with others; below, none are read."""
COMPARED = 32
"""Rollouts that are read for a comparison, at most."""


class UnderWay:
    """The running rollouts of a run, as seen from one look to the next."""

    def __init__(self, store: Store, run_id: str) -> None:
        self.store = store
        self.run_id = run_id
        self._first: dict[str, float] = {}
        """When an attempt was first seen running."""

    async def look(self) -> tuple[dict[str, float], list[float]]:
        """(seconds that each running attempt has been seen for, seconds that others took, from the first call
        to the end). The latter only if one of the former is long."""
        rollouts = await self.store.find_rollouts(self.run_id, status=Status.RUNNING)
        now = time.monotonic()
        by_name = {f"{each.id} (attempt {each.attempts})": each for each in rollouts}
        self._first = {name: self._first.get(name, now) for name in by_name}
        seconds = {name: now - first for name, first in self._first.items()}
        slowest = max(seconds, key=lambda name: seconds[name], default=None)
        if slowest is None or seconds[slowest] < LONG:
            return seconds, []
        return seconds, await self._others(by_name[slowest])

    async def _others(self, slow: Rollout) -> list[float]:
        ended: list[Rollout] = []
        for step in (slow.step, slow.step - 1):
            if len(ended) < COMPARED:
                ended += await self.store.find_rollouts(
                    self.run_id, step=step, split=slow.split, status=Status.SUCCEEDED
                )
        return await self._seconds(ended[:COMPARED])

    async def _seconds(self, ended: Sequence[Rollout]) -> list[float]:
        calls = await self.store.get_calls([rollout.id for rollout in ended])
        return [
            rollout.finished_at - calls[rollout.id][0].started_at
            for rollout in ended
            if rollout.finished_at is not None and calls[rollout.id]
        ]
