"""Rollouts as a runner has them, outside the gateway's process: enqueued, leased, played, finished."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from benchmarks.tiny_server import RUN, TOKENS
from lightning_core.records.types import Attempt, Rollout, Sampling, Task
from lightning_core.stores.base import Store

_LEASE_SECONDS = 7200.0


@dataclass(frozen=True, slots=True)
class Held:
    """A rollout that somebody plays."""

    attempt: Attempt
    token: str

    @property
    def id(self) -> str:
        return self.attempt.rollout.id


class Desk:
    """Gives rollouts out, one at a time."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._leasing = asyncio.Lock()

    async def begin(self, name: str, *, group: str, sampling: Sampling | None = None) -> Held:
        """The first attempt of a new rollout."""
        rollout = Rollout(
            id=name,
            run_id=RUN.id,
            task=Task(input={"question": group}),
            group_id=group,
            step=0,
            sampling=sampling or Sampling(),
        )
        async with self._leasing:
            await self.store.enqueue([rollout])
            (attempt,) = await self.store.lease("fuzz", 1, _LEASE_SECONDS, run_id=RUN.id)
        assert attempt.rollout.id == name
        return Held(attempt, TOKENS.issue(attempt.rollout, attempt.number))

    async def finish(self, held: Held, reward: float) -> None:
        await self.store.finish(held.attempt, reward=reward)
