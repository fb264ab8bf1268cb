"""A worker: a process that plays only the runner's role, in a run that is trained elsewhere.

It runs the same script as the trainer, so it has the same function. What else it must know of the run is in
the run's record. While no gateway answers it waits; when it ends it gives back what it holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from lightning_core.errors import ConfigError
from lightning_core.plugins import load_plugins
from lightning_core.runner.config import RECORDED, RolloutConfig, read_config
from lightning_core.stores.base import Store
from lightning_core.tracing.openai_sdk import instrument
from lightning_core.trainer.parts import open_store
from lightning_core.trainer.roles.joining import Joined, Joining, own_name, until_signal
from lightning_core.trainer.roles.runner import make_runner, name_of, rollout_config, serving_runner
from lightning_core.trainer.settings import Settings
from lightning_core.types import Run


async def work(settings: Settings, joining: Joining, solve: Callable[..., Any]) -> None:
    """Run rollouts until the run is finished, or until a signal.

    Raises ConfigError for a run that is of another function, and StoreError if the store stays away.
    """
    plugins = load_plugins()
    over = until_signal()
    async with open_store(joining.store, plugins) as store:
        worker = WorkerPart(settings, solve, store, own_name(joining))
        with instrument(plugins.who):
            await Joined(joining, store, worker, over).stay()


class WorkerPart:
    """The runner's part."""

    def __init__(self, settings: Settings, solve: Callable[..., Any], store: Store, worker: str) -> None:
        self._settings = settings
        self._solve = solve
        self._store = store
        self._worker = worker
        self.name = f"worker {worker}"
        self.wanted = f"a run of {name_of(solve)!r}"

    def misfit(self, run: Run) -> str | None:
        """Known by the name of the function."""
        try:
            function, mine = self._config(run).solve, name_of(self._solve)
        except ConfigError as unreadable:
            return str(unreadable)
        if function == mine:
            return None
        return (
            f"its rollouts run {function!r}, and this script's first fit() has {mine!r}; start the worker "
            "with the script that the run was begun with"
        )

    def outdated(self, run: Run, now: Run) -> bool:
        """A trainer that resumes the run may have other rules."""
        return run.config.get(RECORDED) != now.config.get(RECORDED)

    @asynccontextmanager
    async def play(self, run: Run) -> AsyncIterator[asyncio.Future[None]]:
        """Run rollouts, those first that a worker of this name held when it died."""
        await self._store.reclaim(self._worker)
        runner = make_runner(
            self._solve,
            self._store,
            run,
            self._config(run),
            worker=self._worker,
            concurrency=self._settings.concurrency,
            workers=self._settings.workers,
        )
        async with serving_runner(runner, self._store, run) as serving:
            yield serving

    def _config(self, run: Run) -> RolloutConfig:
        return read_config(run) or rollout_config(self._settings, self._solve)
