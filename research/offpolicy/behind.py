"""Train the SQL agent on batches that are as old as they may be: `examples/sql/train.py`, but updates wait.

Where the engine is the bottleneck, rollouts are never far ahead of the update, whatever staleness is allowed.
Here every update waits until all rollouts that may begin have ended. So with a staleness of S the batch of
step k, counted from 0, is min(k, S) updates old, to its last token. All else is the example's own: model,
seed, tasks and evaluations.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from lightning_core.trainer.batch import StepBatch
from lightning_core.trainer.collector import Collector
from lightning_core.trainer.parts import ResolvedPhase

if TYPE_CHECKING:
    import torch

Collect = Callable[[Collector, int, ResolvedPhase], Awaitable[StepBatch]]


def waiting(collect: Collect) -> Collect:
    """Collects a step's batch, and returns it once all rollouts that were asked for have ended."""

    async def later(collector: Collector, step: int, phase: ResolvedPhase) -> StepBatch:
        batch = await collect(collector, step, phase)
        found = await collector.session.store.find_rollouts(collector.run_id, split="train")
        await collector.maker.run(found)
        return batch

    return later


def staying_behind() -> Any:
    """A context in which every trainer's updates wait."""
    return patch.object(Collector, "collect", waiting(Collector.collect))


class Ignored:
    """Weight 1 for every token: what other weights have sampled is taken for the policy's own."""

    def __repr__(self) -> str:
        return "Ignored()"

    def weigh(self, proximal: torch.Tensor, recorded: torch.Tensor) -> torch.Tensor:
        return proximal.new_ones(proximal.shape)


async def mean_staleness(store: Any, run_id: str) -> float | None:
    """Returns the mean staleness of all updates of a run."""
    means = [
        m.values["staleness_mean"] for m in await store.list_metrics(run_id) if "staleness_mean" in m.values
    ]
    return sum(means) / len(means) if means else None


def main() -> None:
    with staying_behind():
        import_module("examples.sql.train").main()


if __name__ == "__main__":
    main()
