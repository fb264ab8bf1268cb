"""Staleness made certain: a backend whose updates wait, and a correction that corrects nothing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from lightning_core.algorithms.base import Algorithm
from lightning_core.backends.base import Batch
from lightning_core.backends.local import LocalBackend

if TYPE_CHECKING:
    import torch

QUIET_SECONDS = 1.0
"""A rollout's pause between two calls is far shorter, its tools take milliseconds."""


class Behind(LocalBackend):
    """Begins an update when no request has come for a while: when all rollouts that may begin have ended.

    Where the engine is the bottleneck, rollouts are never far ahead of the update, whatever staleness is
    allowed. So every batch is as stale as its algorithm allows (the first ones less).
    """

    async def update(self, batch: Batch, algorithm: Algorithm) -> dict[str, float]:
        await self._quiet()
        return await super().update(batch, algorithm)

    async def _quiet(self) -> None:
        engine, seen = self.engine, -1
        while engine.sampled_tokens != seen or engine.running or engine.waiting:
            seen = engine.sampled_tokens
            await asyncio.sleep(QUIET_SECONDS)


class Ignored:
    """Weight 1 for every token: what other weights have sampled is taken for the policy's own."""

    def __repr__(self) -> str:
        return "Ignored()"

    def weigh(self, proximal: torch.Tensor, recorded: torch.Tensor) -> torch.Tensor:
        return proximal.new_ones(proximal.shape)


async def mean_staleness(store: Any, run_id: str) -> float | None:
    """Of all updates of a run."""
    means = [
        m.values["staleness_mean"] for m in await store.list_metrics(run_id) if "staleness_mean" in m.values
    ]
    return sum(means) / len(means) if means else None
