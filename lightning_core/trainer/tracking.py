"""Trackers of a run: they get each step's numbers, evaluations, alerts and the end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

from lightning_core.errors import ConfigError
from lightning_core.plugins import Plugins
from lightning_core.stores.base import Store
from lightning_core.trackers.base import Beginning, Feed, Tracker
from lightning_core.trainer.observers import Observer
from lightning_core.trainer.plan import is_planned
from lightning_core.trainer.report import find_evaluation
from lightning_core.trainer.summary import Evaluation
from lightning_core.types import Alert, Metrics, Run

METHODS = ("start", "log", "alert", "finish")


class Trackers(Observer):
    """The trackers of one run; they are waited for at its end alone."""

    def __init__(self, given: Sequence[Any] | str, plugins: Plugins, *, resumed: bool) -> None:
        """Raises ConfigError for what is no tracker, UnsupportedError if its library is not installed."""
        self._feeds = [make_feed(each, plugins) for each in ([given] if isinstance(given, str) else given)]
        self._resumed = resumed
        self._known: frozenset[int] = frozenset()
        """Steps that the trackers were told of before."""

    def start(self, run: Run, history: Sequence[Metrics]) -> None:
        self._known = frozenset(entry.step for entry in history)
        for feed in self._feeds:
            feed.start(Beginning(run, self._resumed))

    async def step_ended(self, metrics: Metrics) -> None:
        if metrics.step not in self._known:
            self._tell("log", metrics.step + 1, metrics.values, metrics.created_at)

    def evaluated(self, result: Evaluation) -> None:
        self._tell("log", result.step, evaluation_numbers(result), time.time())

    def alert(self, alert: Alert) -> None:
        self._tell("alert", alert)

    async def finish(self, status: str) -> None:
        """Wait until all is written, within bounds."""
        self._tell("finish", status)
        for feed in self._feeds:
            await asyncio.to_thread(feed.join)

    def _tell(self, method: str, *arguments: Any) -> None:
        for feed in self._feeds:
            feed.tell(method, *arguments)


def make_feed(given: Any, plugins: Plugins) -> Feed:
    """A feed to a tracker, given itself or by name."""
    tracker = plugins.part("tracker", given)() if isinstance(given, str) else given
    if isinstance(tracker, type) or not all(callable(getattr(tracker, each, None)) for each in METHODS):
        raise ConfigError(
            f"trackers={given!r}: give names ({', '.join(map(repr, plugins.names('tracker')))}) or objects "
            f"with the methods {', '.join(METHODS)}"
        )
    return Feed(given if isinstance(given, str) else type(tracker).__name__, tracker)


def evaluation_numbers(result: Evaluation) -> Mapping[str, float]:
    """What a tracker is told of an evaluation."""
    return {"validation/sampled": result.sampled, "validation/greedy": result.greedy}


async def replay(store: Store, run: Run, tracker: Tracker) -> int:
    """Tell a tracker all of a run, as it stands in the store; returns how many steps."""
    metrics = await store.list_metrics(run.id)
    counts = await store.count_rollouts(run.id)
    tracker.start(Beginning(run))
    for step in sorted({count.step for count in counts if count.split == "validation"}):
        if (found := await find_evaluation(store, run.id, step, None)) is not None:
            validation = await store.find_rollouts(run.id, step=step, split="validation")
            ended = [rollout.finished_at for rollout in validation if is_planned(rollout)]
            tracker.log(step, evaluation_numbers(found), max(filter(None, ended), default=run.created_at))
    for entry in metrics:
        tracker.log(entry.step + 1, entry.values, entry.created_at)
    for alert in await store.list_alerts(run.id):
        tracker.alert(alert)
    tracker.finish(run.status)
    return len(metrics)
