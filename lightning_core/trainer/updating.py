"""The updates of a step: from its own batch, then from those that are replayed; and their publication."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Sequence
from statistics import fmean

from lightning_core.algorithms.base import Algorithm
from lightning_core.backends.base import Batch
from lightning_core.errors import TrainingError
from lightning_core.trainer.display import Display
from lightning_core.trainer.session import Session
from lightning_core.trainer.staleness import measure
from lightning_core.types import Trajectory

logger = logging.getLogger(__name__)

MOST_SKIPPED = 3
"""Updates in a row that may fail before the run stops."""


class Updating:
    """Makes the updates of a run."""

    def __init__(self, session: Session, display: Display) -> None:
        self.session = session
        self.display = display
        self._failed = 0
        """Updates in a row that could not be made."""

    async def update(
        self,
        step: int,
        algorithm: Algorithm,
        credited: list[Trajectory],
        again: Sequence[list[Trajectory]] = (),
    ) -> dict[str, float]:
        """Update, train on `again`, and publish what has changed; returns the step's metrics.

        A batch that nothing can be learnt from is skipped and counted; those to be trained on again are not
        skipped with it. Raises TrainingError if several steps' own updates in a row can't be made.
        """
        backend = self.session.backend
        self.display.updating(f"step {step + 1}")
        own = await self._update(step, algorithm, credited)
        replayed, numbers = await self._replay(step, algorithm, again)
        made = replayed if "skipped_updates" in own else [credited, *replayed]
        metrics = {**own, **numbers}
        if not made:
            return metrics
        if algorithm.teaching is None:  # a demonstration was sampled by nobody
            metrics |= measure(itertools.chain(*made), backend.policy_version)
            metrics["staleness_bound"] = float(algorithm.staleness + algorithm.replay)
        began = time.perf_counter()
        version = await backend.publish()
        return {**metrics, "policy_version": float(version), "publish_seconds": time.perf_counter() - began}

    async def _update(self, step: int, algorithm: Algorithm, credited: list[Trajectory]) -> dict[str, float]:
        """From the step's own batch. `skipped_updates` says that none was made, `failed_updates` that the
        backend could not."""
        if not credited:
            self.display.note(
                f"step {step + 1}: no group says which of its rollouts were good; nothing to learn"
            )
            return {"skipped_updates": 1.0}
        try:
            metrics = await self.session.backend.update(Batch(step, tuple(credited)), algorithm)
        except TrainingError as problem:
            self._failed += 1
            logger.warning("step %d: update skipped: %s", step, problem)
            if self._failed >= MOST_SKIPPED:
                raise
            return {"skipped_updates": 1.0, "failed_updates": 1.0}
        self._failed = 0
        return metrics

    async def _replay(
        self, step: int, algorithm: Algorithm, batches: Sequence[list[Trajectory]]
    ) -> tuple[list[list[Trajectory]], dict[str, float]]:
        """(the batches that an update was made from again, the means of its metrics); `replay/skipped` says
        of how many none could be made."""
        made: list[list[Trajectory]] = []
        metrics: list[dict[str, float]] = []
        for batch in batches:
            try:
                metrics.append(await self.session.backend.update(Batch(step, tuple(batch)), algorithm))
                made.append(batch)
            except TrainingError as problem:
                logger.warning("step %d: a batch was not replayed: %s", step, problem)
        numbers = {
            f"replay/{name}": fmean(each[name] for each in metrics) for name in next(iter(metrics), ())
        }
        return made, numbers | ({"replay/skipped": float(len(batches) - len(made))} if batches else {})
