"""Observers: what a run tells while it goes on, and to whom.

The display, the trackers and the alert rules are observers. Each overrides the methods that it needs. None of
them changes the run.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import shutil
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from lightning_core.alerts.watch import Alerts, Rule, Scene, Space, Watch, make_rule
from lightning_core.errors import ConfigError, StoreError
from lightning_core.experience.transitions import is_planned
from lightning_core.plugins import Plugins
from lightning_core.records.types import Alert, Metrics, Rollout, Run, Status
from lightning_core.stores.base import Store
from lightning_core.tracing.scope import read_unseen
from lightning_core.trackers.base import Beginning, Feed, Tracker
from lightning_core.trainer.folder import RunFolder
from lightning_core.trainer.report import find_evaluation
from lightning_core.trainer.summary import Evaluation

log = logging.getLogger(__name__)

METHODS = ("start", "log", "alert", "finish")
"""Methods of a tracker."""
LOOK_SECONDS = 30.0
"""Between two looks at members, rollouts and the disk, while a step goes on."""
READINGS = 20
"""Readings of the disk that an estimate is made from."""
TELLING_SECONDS = 10.0
"""Seconds that the end of a run waits for a user's own function."""
LONG = 30.0
"""Seconds from which on a rollout is compared with others; below, none are read."""
COMPARED = 32
"""Rollouts that are read for a comparison, at most."""


class Observer:
    """Sees a run; every method does nothing unless it is overridden."""

    def start(self, run: Run, history: Sequence[Metrics]) -> None:
        """The run begins, or goes on after the steps in `history`."""

    def note(self, text: str) -> None:
        """A line that a person should read."""

    def collecting(self, what: str, rollouts: Sequence[Rollout]) -> None:
        """The rollouts are waited for; some may have ended already."""

    def rollout_ended(self, rollout: Rollout) -> None:
        """One more rollout has ended."""

    def updating(self, step: int) -> None:
        """The weights are being changed by this step."""

    async def step_ended(self, metrics: Metrics) -> None:
        """An update is made, its metrics and its checkpoint are stored."""

    def evaluated(self, result: Evaluation) -> None:
        """An evaluation is finished, now or by a process that was killed."""

    def alert(self, alert: Alert) -> None:
        """Something about the run looks wrong; the alert is stored."""

    async def finish(self, status: str) -> None:
        """The run has "finished", "stopped" or "failed"."""


class Observers(Observer):
    """Tells each observer of a list, in turn; the end is told to the last one first."""

    def __init__(self, *observers: Observer) -> None:
        self._all = list(observers)

    def add(self, observer: Observer) -> None:
        """Tell this one too."""
        self._all.append(observer)

    @asynccontextmanager
    async def observe(self, run: Run, history: Sequence[Metrics]) -> AsyncIterator[None]:
        """Tell of the start, and at the end of the block how the run has ended."""
        status = "failed"
        self.start(run, history)
        try:
            yield
            status = "finished"
        except asyncio.CancelledError:
            status = "stopped"
            raise
        finally:
            await self.finish(status)

    def start(self, run: Run, history: Sequence[Metrics]) -> None:
        for each in self._all:
            each.start(run, history)

    def note(self, text: str) -> None:
        for each in self._all:
            each.note(text)

    def collecting(self, what: str, rollouts: Sequence[Rollout]) -> None:
        for each in self._all:
            each.collecting(what, rollouts)

    def rollout_ended(self, rollout: Rollout) -> None:
        for each in self._all:
            each.rollout_ended(rollout)

    def updating(self, step: int) -> None:
        for each in self._all:
            each.updating(step)

    async def step_ended(self, metrics: Metrics) -> None:
        for each in self._all:
            await each.step_ended(metrics)

    def evaluated(self, result: Evaluation) -> None:
        for each in self._all:
            each.evaluated(result)

    def alert(self, alert: Alert) -> None:
        for each in self._all:
            each.alert(alert)

    async def finish(self, status: str) -> None:
        for each in reversed(self._all):
            await each.finish(status)


# trackers --------------------------------------------------------------------------------
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
    """Returns an evaluation's metrics for a tracker."""
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


# alerts ----------------------------------------------------------------------------------
class AlertObserver(Observer):
    """Has the rules look at one run."""

    def __init__(
        self,
        setting: Alerts,
        plugins: Plugins,
        store: Store,
        folder: RunFolder,
        *,
        total_steps: int,
        tell: Callable[[Alert], None],
    ) -> None:
        """`tell` is given each new alert. Raises ConfigError for an unknown rule or threshold."""
        self.setting = setting
        self.store = store
        self.folder = folder
        self.total_steps = total_steps
        self.tell = tell
        self._watch = Watch(folder.run_id, make_rules(setting, plugins))
        self._in_flight = InFlight(store, folder.run_id)
        self._began = time.time()
        self._history: list[Metrics] = []
        self._space: list[Space] = []
        self._ended: list[str] = []
        """Rollouts that no look has gone through yet."""
        self._unseen: dict[str, tuple[str, int]] = {}
        self._untold: list[Alert] = []
        """Found, and not yet in the store."""
        self._looking = asyncio.Lock()
        self._calls: set[asyncio.Task[None]] = set()
        """Calls of the user's own function."""
        self._beat: asyncio.Task[None] | None = None

    def start(self, run: Run, history: Sequence[Metrics]) -> None:
        self._history = list(history)
        self._watch.recall(self._history)
        self._beat = asyncio.create_task(self._look_between())

    def rollout_ended(self, rollout: Rollout) -> None:
        self._ended.append(rollout.id)

    async def step_ended(self, metrics: Metrics) -> None:
        self._history.append(metrics)
        space = await asyncio.to_thread(read_space, metrics.step, self.folder.checkpoints)
        self._space = [*self._space[1 - READINGS :], space]
        await self.look()

    def alert(self, alert: Alert) -> None:
        if self.setting.on_alert is not None:
            task = asyncio.create_task(_call(self.setting.on_alert, alert))
            self._calls.add(task)
            task.add_done_callback(self._calls.discard)

    async def finish(self, status: str) -> None:
        if self._beat is not None:
            async with self._looking:  # what is stored is told as well
                self._beat.cancel()
            await asyncio.wait({self._beat})
        if self._calls:
            _, late = await asyncio.wait(self._calls, timeout=TELLING_SECONDS)
            for task in late:
                log.warning("on_alert was still busy after %g s and is not waited for", TELLING_SECONDS)
                task.cancel()

    async def look(self) -> None:
        """Ask the rules, store what is new, and tell it."""
        async with self._looking:
            self._untold += self._watch.look(await self._scene())
            if not self._untold:
                return
            await self.store.add_alerts(self._untold)
            for alert in self._untold:
                self.tell(alert)
            self._untold = []

    async def _scene(self) -> Scene:
        running, ended = await self._in_flight.look()
        return Scene(
            history=tuple(self._history),
            total_steps=self.total_steps,
            now=time.time(),
            since=self._began,
            members=await self.store.list_members(self.folder.run_id),
            running=running,
            ended=ended,
            space=tuple(self._space),
            unseen=await self._find_unseen(),
        )

    async def _find_unseen(self) -> dict[str, tuple[str, int]]:
        ended = list(self._ended)
        for events in (await self.store.get_events(ended)).values() if ended else ():
            for unseen, count in filter(None, map(read_unseen, events)):
                known = self._unseen.get(unseen.subject, ("", 0))[1]
                self._unseen[unseen.subject] = unseen.said(), known + count
        del self._ended[: len(ended)]
        return dict(self._unseen)

    async def _look_between(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self.look()
            except StoreError as error:
                log.warning("the run could not be looked at, the next time it may: %s", error)


class InFlight:
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


def to_alerts(setting: Alerts | bool | None) -> Alerts | None:
    """Reads `Trainer(alerts=...)`; None if alerts are off."""
    if isinstance(setting, Alerts):
        return setting
    if setting is None or isinstance(setting, bool):
        return Alerts() if setting else None
    raise ConfigError(
        f"alerts={setting!r}: give True, False, or lightning.Alerts(rules={{'reward_collapse': {{...}}}})"
    )


def make_rules(setting: Alerts, plugins: Plugins) -> Mapping[str, Rule]:
    """The rules that take part, by name. ConfigError for a name that is not registered."""
    names = plugins.names("alert")
    own = {name: each for name, each in setting.rules.items() if callable(each)}
    for name in own.keys() & set(names):
        raise ConfigError(
            f"Alerts(rules=...) has a function named {name!r}, but a rule has that name: rename the function"
        )
    changes = {name: each for name, each in setting.rules.items() if not callable(each)}
    for name in changes.keys() - set(names):
        plugins.part("alert", name)  # says which there are
    made = {
        name: make_rule(name, plugins.part("alert", name), change)
        for name in names
        if (change := changes.get(name, True)) is not False
    }
    return {**made, **own}


def read_space(step: int, checkpoints: Path) -> Space:
    """The disk that the checkpoints are on, now."""
    sizes = [_size(folder) for folder in checkpoints.iterdir()]
    return Space(step, shutil.disk_usage(checkpoints).free, sum(sizes), max(sizes, default=0))


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:  # deleted meanwhile
            continue
    return total


async def _call(on_alert: Any, alert: Alert) -> None:
    try:
        if inspect.iscoroutinefunction(on_alert):
            await on_alert(alert)
        else:
            await asyncio.to_thread(on_alert, alert)
    except Exception as error:  # a user's own function: it must not stop the run
        log.warning("on_alert failed for %r: %r", alert.id, error)
