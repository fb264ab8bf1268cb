"""The runner's role: it runs the rollouts of a run, as the run's record says, in whatever process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from lightning_core.gateway.tokens import Tokens, expiry
from lightning_core.heartbeat import Heartbeat, make_member
from lightning_core.runner import Runner
from lightning_core.runner.config import RolloutConfig
from lightning_core.runner.gateways import Gateways
from lightning_core.runner.ray_workers import Workers
from lightning_core.stores.base import Store
from lightning_core.tracing.scope import Scope
from lightning_core.trainer.settings import Settings
from lightning_core.types import Attempt, Rollout, Run


def rollout_config(settings: Settings, solve: Callable[..., Any]) -> RolloutConfig:
    """What a trainer's settings say of its rollouts."""
    judged = settings.judge is not None and settings.judge.weight == 1
    return RolloutConfig(name_of(solve), settings.timeout, settings.on_failure, judged)


def name_of(solve: Callable[..., Any]) -> str:
    """What the function is called, in whatever process."""
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
    return partial(_scope, tokens_of(run), agents_of(run), timeout)


def _scope(
    tokens: Tokens,
    agents: tuple[str, ...] | None,
    timeout: float | None,
    attempt: Attempt,
    url: str,
    instance: str,
) -> Scope:
    return Scope(
        rollout_id=attempt.rollout.id,
        attempt=attempt.number,
        gateway_url=url,
        token=tokens.issue(attempt.rollout, attempt.number, expires_at=expiry(timeout)),
        agents=agents,
        gateway_instance=instance,
    )


def make_runner(
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
) -> Runner:
    """A runner of the run's rollouts. Their calls go to `gateway_url`, or to gateways found in the store."""
    make_scope = scopes(run, config.timeout)
    gateways = Gateways(store, run.id, make_scope) if gateway_url is None else None
    return Runner(
        solve,
        store,
        run_id=run.id,
        scope_for=gateways.scope_for
        if gateways
        else lambda attempt: make_scope(attempt, gateway_url or "", ""),
        gateways=gateways,
        concurrency=concurrency,
        workers=workers,
        timeout=config.timeout,
        on_failure=config.on_failure,
        judged=config.judged,
        worker=worker,
        on_finished=on_finished,
    )


@asynccontextmanager
async def serving_runner(runner: Runner, store: Store, run: Run) -> AsyncIterator[asyncio.Task[None]]:
    """Run rollouts while the block runs; gives the task that does. What is unfinished then is given back."""
    stop = asyncio.Event()
    member = make_member(run.id, "runner", runner.worker, slots=runner.concurrency)
    async with Heartbeat(store, member):
        serving = asyncio.create_task(runner.serve(stop))
        try:
            yield serving
        finally:
            stop.set()
            await serving
