"""How the rollouts of a run are run: one truth for every process that runs them, the run's own record."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from lightning_core.gateway.tokens import Tokens, expiry
from lightning_core.runner import Runner
from lightning_core.runner.executor import Executor
from lightning_core.runner.gateways import Gateways
from lightning_core.runner.rules import Rules
from lightning_core.stores.base import Store
from lightning_core.tracing.scope import Scope
from lightning_core.trainer.settings import Settings
from lightning_core.types import Attempt, Rollout, Run


def rules_of(trainer: Settings, solve: Callable[..., Any]) -> Rules:
    """What a trainer's settings say."""
    judged = trainer.judge is not None and trainer.judge.weight == 1
    return Rules(name_of(solve), trainer.timeout, trainer.on_failure, judged)


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
    rules: Rules,
    *,
    worker: str,
    concurrency: int,
    gateway_url: str | None = None,
    executor: Executor | None = None,
    on_finished: Callable[[Rollout], None] | None = None,
) -> Runner:
    """A runner of the run's rollouts. Their calls go to `gateway_url`, or to gateways found in the store."""
    make_scope = scopes(run, rules.timeout)
    gateways = Gateways(store, run.id, make_scope) if gateway_url is None else None
    return Runner(
        solve,
        store,
        run_id=run.id,
        scope_for=gateways.scope_for
        if gateways
        else lambda attempt: make_scope(attempt, gateway_url or "", ""),
        ground=gateways,
        concurrency=concurrency,
        timeout=rules.timeout,
        on_failure=rules.on_failure,
        judged=rules.judged,
        worker=worker,
        executor=executor,
        on_finished=on_finished,
    )
