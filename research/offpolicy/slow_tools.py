"""Train the SQL agent with a slow database: `examples/sql/train.py`, but every query takes its time.

The latency is log-normal, with a median of 0.3 s and a long tail: one query in a hundred takes over 3 s. It
follows from the step, the place in the batch and the number of the query alone, so that runs that are
compared wait equally long. Evaluations don't wait: they are left out of the times that are compared.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from importlib import import_module
from unittest.mock import patch

from examples.sql import app
from lightning_core.tracing.scope import current_scope

MEDIAN, SIGMA = 0.3, 1.0
"""Seconds, and the deviation of their logarithm."""


def latency(rollout_id: str, number: int) -> float:
    """Seconds that the query of that number takes in a training rollout; 0 in an evaluation."""
    step, place, member = rollout_id.rsplit("-", 3)[1:]
    if not step.startswith("t"):
        return 0.0
    return MEDIAN * random.Random(f"{step}-{place}-{member}-{number}").lognormvariate(0.0, SIGMA)


def slowed(
    execute: Callable[[app.State], app.Update],
) -> Callable[[app.State], Awaitable[app.Update]]:
    """The app's own step, after a while."""
    queries: Counter[str] = Counter()  # so far in each rollout

    async def later(state: app.State) -> app.Update:
        scope = current_scope()
        if scope is not None:
            await asyncio.sleep(latency(scope.rollout_id, queries[scope.rollout_id]))
            queries[scope.rollout_id] += 1
        return execute(state)

    return later


def main() -> None:
    with patch.object(app, "execute", slowed(app.execute)):
        train = import_module("examples.sql.train")
    train.main()


if __name__ == "__main__":
    main()
