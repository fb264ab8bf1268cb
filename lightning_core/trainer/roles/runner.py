"""The runner's role: it runs the rollouts of a run, in the trainer's process or in a worker.

A worker plays only this role, in a run that is trained elsewhere. It runs the same script as the trainer, so
it has the same function. What else it must know of the run is in the run's record. While no gateway answers
it waits; when it ends it gives back what it holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from lightning_core.errors import ConfigError
from lightning_core.gateway.tokens import Tokens, expiry
from lightning_core.plugins import load_plugins
from lightning_core.prompts import PinnedPrompts
from lightning_core.records.types import Attempt, Rollout, Run
from lightning_core.runner.config import RECORDED, RolloutConfig, read_config
from lightning_core.runner.gateways import Gateways
from lightning_core.runner.ray_workers import Workers
from lightning_core.runner.runner import Runner
from lightning_core.runner.tagging import tagging
from lightning_core.stores.base import Store
from lightning_core.stores.heartbeat import Heartbeat, make_member
from lightning_core.tracing.scope import Scope
from lightning_core.trainer.parts import open_store
from lightning_core.trainer.roles.joining import Joined, Joining, own_name, until_signal
from lightning_core.trainer.settings import Settings


def rollout_config(settings: Settings, solve: Callable[..., Any]) -> RolloutConfig:
    """Returns the part of a trainer's settings that its runners need."""
    judged = settings.judge is not None and settings.judge.weight == 1
    return RolloutConfig(name_of(solve), settings.timeout, settings.on_failure, judged)


def name_of(solve: Callable[..., Any]) -> str:
    """Returns the function's name, the same in every process."""
    return getattr(solve, "__qualname__", None) or type(solve).__qualname__


def agents_of(run: Run) -> tuple[str, ...] | None:
    """Names or globs of the agents that the run trains; None: all."""
    written: Any = run.config.get("agents")
    return None if written is None else tuple(written)


def tokens_of(run: Run) -> Tokens:
    """Issues and reads the tokens of the run's rollouts."""
    return Tokens(bytes.fromhex(run.secret))


def scopes(run: Run, timeout: float | None) -> Callable[[Attempt, str, str], Scope]:
    """Makes the scope of an attempt, given its gateway's address and which gateway that is."""
    tokens, agents = tokens_of(run), agents_of(run)

    def scope(attempt: Attempt, url: str, instance: str) -> Scope:
        return Scope(
            rollout_id=attempt.rollout.id,
            attempt=attempt.number,
            gateway_url=url,
            token=tokens.issue(attempt.rollout, attempt.number, expires_at=expiry(timeout)),
            agents=agents,
            gateway_instance=instance,
        )

    return scope


@asynccontextmanager
async def running(
    solve: Callable[..., Any],
    store: Store,
    run: Run,
    config: RolloutConfig,
    *,
    worker: str,
    concurrency: int,
    workers: Workers = None,
    gateway_url: str | None = None,
    on_finished: Callable[[Rollout], None] | None = None,
) -> AsyncIterator[asyncio.Task[None]]:
    """Run rollouts while the block runs; gives the task that does. What is unfinished then is given back.

    Their calls go to `gateway_url`, or to gateways found in the store.
    """
    make_scope = scopes(run, config.timeout)
    gateways = Gateways(store, run.id, make_scope) if gateway_url is None else None
    runner = Runner(
        solve,
        store,
        run_id=run.id,
        scope_for=gateways.scope_for
        if gateways
        else lambda attempt: make_scope(attempt, gateway_url or "", ""),
        gateways=gateways,
        prompts=PinnedPrompts(store, run),
        concurrency=concurrency,
        workers=workers,
        timeout=config.timeout,
        on_failure=config.on_failure,
        judged=config.judged,
        worker=worker,
        on_finished=on_finished,
    )
    stop = asyncio.Event()
    async with Heartbeat(store, make_member(run.id, "runner", worker, slots=runner.concurrency)):
        serving = asyncio.create_task(runner.serve(stop))
        try:
            yield serving
        finally:
            stop.set()
            await serving


# in a worker ------------------------------------------------------------------------------
async def work(settings: Settings, joining: Joining, solve: Callable[..., Any]) -> None:
    """Run rollouts until the run is finished, or until a signal.

    Raises ConfigError for a run that is of another function, and StoreError if the store stays away.
    """
    plugins = load_plugins()
    over = until_signal()
    async with open_store(joining.store, plugins) as store:
        worker = WorkerPart(settings, solve, store, own_name(joining))
        with tagging(plugins):
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

    async def play(self, run: Run) -> None:
        """Run rollouts, those first that a worker of this name held when it died."""
        await self._store.reclaim(self._worker)
        async with running(
            self._solve,
            self._store,
            run,
            self._config(run),
            worker=self._worker,
            concurrency=self._settings.concurrency,
            workers=self._settings.workers,
        ) as serving:
            await asyncio.wait({serving})

    def _config(self, run: Run) -> RolloutConfig:
        return read_config(run) or rollout_config(self._settings, self._solve)
