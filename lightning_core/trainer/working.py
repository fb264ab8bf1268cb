"""A worker: a process that plays only the runner's role, in a run that is trained elsewhere.

It runs the same script as the trainer, so it has the same function. It may begin before the trainer does, and
outlives it: while no gateway answers, or while the run is stopped, it waits. What it must know of the run is
in the run's record. It ends when the run is finished, or at a signal, and then gives back what it holds.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lightning_core.errors import ConfigError
from lightning_core.plugins import load_plugins
from lightning_core.presence import BEAT_SECONDS, find_living
from lightning_core.runner.executor import Executor, make_executor
from lightning_core.stores.base import Store
from lightning_core.tracing.openai_sdk import instrument
from lightning_core.trainer.embedded import serving_runner
from lightning_core.trainer.playing import Rules, make_runner, name_of, read_rules, rules_of
from lightning_core.trainer.session import open_store
from lightning_core.types import Run

if TYPE_CHECKING:
    from lightning_core.trainer.trainer import Trainer

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Joining:
    """Which run a worker joins, and as whom."""

    store: str
    """URL of the store that holds it."""
    run: str | None = None
    """Its id. None: the newest run of this script that is being trained."""
    name: str | None = None
    """The worker's name: one that starts anew under it gives back at once what the one that died held. No two
    at work may have the same. None: a name of this process alone."""
    once: bool = False
    """End also when the run is stopped or has failed, instead of waiting until it is resumed."""
    look_seconds: float = BEAT_SECONDS
    """Between two looks at the run."""
    say: Callable[[str], None] = log.info
    """Tells a person what is going on."""


async def work(trainer: Trainer, joining: Joining, solve: Callable[..., Any]) -> None:
    """Run rollouts until the run is finished, or until a signal.

    Raises ConfigError for a run that is of another function, and StoreError if the store stays away.
    """
    plugins = load_plugins()
    over = asyncio.Event()
    _heed_signals(over)
    async with open_store(joining.store, plugins) as store:
        executor = make_executor(trainer.executor, plugins)
        worker = Worker(trainer, joining, solve, store, over, executor)
        with instrument(plugins.who):
            await worker.work()


class Worker:
    """Joins one run and stays with it."""

    def __init__(
        self,
        trainer: Trainer,
        joining: Joining,
        solve: Callable[..., Any],
        store: Store,
        over: asyncio.Event,
        executor: Executor,
    ) -> None:
        self.trainer = trainer
        self.joining = joining
        self.solve = solve
        self.store = store
        self.over = over
        """Set when this process is to end."""
        self.executor = executor
        self.name = joining.name or f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"

    async def work(self) -> None:
        """To the end of the run."""
        say = self.joining.say
        run = await self._find()
        await self.store.reclaim(self.name)
        while run is not None and run.status != "finished" and not self.over.is_set():
            if run.status == "running":
                say(f"worker {self.name} works for run {run.id}")
                await self._play(run)
            elif self.joining.once:
                break
            run = await self._news(run)
        say(f"worker {self.name} ends: run {run.id} is {run.status}" if run else f"worker {self.name} ends")

    # which run ----------------------------------------------------------------------------
    async def _find(self) -> Run | None:
        """The run to join, as soon as there is one; None if the process is to end first."""
        told = ""
        while not self.over.is_set():
            runs = await self.store.list_runs()
            run = self._named(runs) if self.joining.run is not None else await self._newest(runs)
            if run is not None:
                return run
            waiting = self._wanting(runs)
            if waiting != told:
                self.joining.say(waiting)
                told = waiting
            await self._pause()
        return None

    def _named(self, runs: list[Run]) -> Run | None:
        run = next((run for run in runs if run.id == self.joining.run), None)
        if run is not None and not self._matches(run):
            raise ConfigError(
                f"run {run.id!r} runs {self._rules(run).solve!r}, and this script's first fit() has "
                f"{name_of(self.solve)!r}: start the worker with the script that the run was begun with"
            )
        return run

    async def _newest(self, runs: list[Run]) -> Run | None:
        """Newest first; one whose trainer has died is not joined, for a newer one may be begun instead."""
        for run in runs:
            mine = run.status == "running" and self._matches(run)
            if mine and await find_living(self.store, run.id, "trainer"):
                return run
        return None

    def _wanting(self, runs: list[Run]) -> str:
        given, mine = self.joining.run, name_of(self.solve)
        if given is not None:
            return f"waiting for run {given!r}; the store has {_names(runs) or 'none yet'}"
        others = [run for run in runs if run.status == "running" and not self._matches(run)]
        beside = f"; running are {_names(others)}, which run other functions" if others else ""
        return f"waiting for a run of {mine!r} that is being trained{beside}"

    def _matches(self, run: Run) -> bool:
        return self._rules(run).solve == name_of(self.solve)

    def _rules(self, run: Run) -> Rules:
        return read_rules(run) or rules_of(self.trainer, self.solve)

    # at work ------------------------------------------------------------------------------
    async def _play(self, run: Run) -> None:
        """Run rollouts while the run is going on."""
        runner = make_runner(
            self.solve,
            self.store,
            run,
            self._rules(run),
            worker=self.name,
            concurrency=self.trainer.concurrency,
            executor=self.executor,
        )
        async with serving_runner(runner, self.store, run) as serving:
            watching = asyncio.create_task(self._while_running(run))
            try:
                await asyncio.wait({serving, watching}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)

    async def _while_running(self, run: Run) -> None:
        while not self.over.is_set() and (await self._news(run)).status == "running":
            pass

    async def _news(self, run: Run) -> Run:
        """The run, a moment later."""
        await self._pause()
        return await self.store.find_run(run.id) or run

    async def _pause(self) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self.over.wait(), self.joining.look_seconds)


def _names(runs: list[Run]) -> str:
    return ", ".join(repr(run.id) for run in runs[:5])


def _heed_signals(over: asyncio.Event) -> None:
    """The first SIGINT or SIGTERM ends the work, the second the process."""
    if threading.current_thread() is not threading.main_thread():
        return
    loop = asyncio.get_running_loop()

    def end(number: signal.Signals) -> None:
        over.set()
        loop.remove_signal_handler(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end, number)
