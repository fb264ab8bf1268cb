"""Watching a run: after each step, and between steps while one goes on.

The rules are in `alerts/`; this is what shows them the run, keeps what they find in the store, and tells it.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import shutil
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from lightning_core.alerts.watch import Alerts, Rule, Scene, Space, Watch, make_rule
from lightning_core.errors import ConfigError, StoreError
from lightning_core.plugins import Plugins
from lightning_core.trainer.display import Display
from lightning_core.trainer.session import Session
from lightning_core.trainer.summary import Evaluation
from lightning_core.trainer.tracking import Tracking
from lightning_core.trainer.underway import UnderWay
from lightning_core.types import Alert, Metrics, Run

log = logging.getLogger(__name__)

READINGS = 20
"""Of the disk, that an estimate is made from."""
TELLING_SECONDS = 10.0
"""That the end of a run waits for a user's own function."""


class Watching:
    """`async with Watching(session, display).watch(run, first)`: inside, the run is watched."""

    def __init__(self, session: Session, display: Display) -> None:
        """Raises ConfigError for a rule or a threshold that there is not."""
        self.session = session
        self.display = display
        self.setting = to_alerts(session.trainer.alerts)
        rules = make_rules(self.setting, session.plugins) if self.setting else {}
        self._watch = Watch(session.folder.run_id, rules)
        self._underway = UnderWay(session.store, session.folder.run_id)
        self._began = time.time()
        self._history: list[Metrics] = []
        self._space: list[Space] = []
        self.tracking = Tracking(session.trainer.trackers, session.plugins)
        self._untold: list[Alert] = []
        """Found, and not yet in the store."""
        self._looking = asyncio.Lock()
        self._telling: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def watch(self, run: Run, first: int) -> AsyncIterator[None]:
        """Inside, the run goes on after `first` steps, whose conditions were told already."""
        known = await self.session.store.list_metrics(run.id)
        self._history = [entry for entry in known if entry.step < first]
        self._watch.recall(self._history)
        self.tracking.start(run, self._history, resumed=self.session.trainer.resume)
        beat, status = asyncio.create_task(self._look_between()), "failed"
        try:
            yield
            status = "finished"
        except asyncio.CancelledError:
            status = "stopped"
            raise
        finally:
            async with self._looking:  # what is stored is told as well
                beat.cancel()
            await asyncio.wait({beat})
            await self._end_telling()
            await self.tracking.finish(status)

    async def _end_telling(self) -> None:
        if self._telling:
            _, late = await asyncio.wait(self._telling, timeout=TELLING_SECONDS)
            for task in late:
                log.warning("on_alert was still busy after %g s and is not waited for", TELLING_SECONDS)
                task.cancel()

    def evaluated(self, result: Evaluation) -> None:
        """An evaluation is made."""
        self.tracking.evaluated(result, time.time())

    async def stepped(self, metrics: Metrics) -> None:
        """A step is made."""
        self.tracking.stepped(metrics)
        self._history.append(metrics)
        if self.setting is not None:
            space = await asyncio.to_thread(read_space, metrics.step, self.session.folder.checkpoints)
            self._space = [*self._space[1 - READINGS :], space]
            await self.look()

    async def look(self) -> None:
        """Ask the rules, store what is new, and tell it."""
        async with self._looking:
            self._untold += self._watch.look(await self._scene())
            if not self._untold:
                return
            await self.session.store.add_alerts(self._untold)
            for alert in self._untold:
                self._tell(alert)
            self._untold = []

    async def _scene(self) -> Scene:
        running, ended = await self._underway.look()
        return Scene(
            history=tuple(self._history),
            total_steps=self.session.trainer.total_steps,
            now=time.time(),
            since=self._began,
            members=await self.session.store.list_members(self.session.folder.run_id),
            running=running,
            ended=ended,
            space=tuple(self._space),
        )

    async def _look_between(self) -> None:
        while self.setting is not None:
            await asyncio.sleep(self.setting.every)
            try:
                await self.look()
            except StoreError as error:
                log.warning("the run could not be looked at, the next time it may: %s", error)

    def _tell(self, alert: Alert) -> None:
        self.display.alert(alert)
        self.tracking.alert(alert)
        if self.setting is not None and self.setting.on_alert is not None:
            task = asyncio.create_task(_call(self.setting.on_alert, alert))
            self._telling.add(task)
            task.add_done_callback(self._telling.discard)


def to_alerts(setting: Alerts | bool | None) -> Alerts | None:
    """What `Trainer(alerts=...)` asks for; None if it is off."""
    if isinstance(setting, Alerts):
        return setting
    if setting is None or isinstance(setting, bool):
        return Alerts() if setting else None
    raise ConfigError(
        f"alerts={setting!r}: give True, False, or lightning.Alerts(rules={{'reward_collapse': {{...}}}})"
    )


def make_rules(setting: Alerts, plugins: Plugins) -> Mapping[str, Rule]:
    """The rules that take part, by name. ConfigError for a name that nobody registered."""
    names = plugins.names("alert")
    for name in setting.rules.keys() - set(names):
        plugins.part("alert", name)  # says which there are
    made = {
        name: make_rule(name, plugins.part("alert", name), change)
        for name in names
        if (change := setting.rules.get(name, True)) is not False
    }
    own = {getattr(each, "__name__", type(each).__name__): each for each in setting.functions}
    for name in own.keys() & made.keys():
        raise ConfigError(f"Alerts(functions=...) has a rule called {name!r}, as there is one: rename it")
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
