"""Rollouts that fork from a recorded one, run after training as a trial of its run.

The run's versions answer, the app is the script's, and nothing of the recorded run is changed.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

from lightning_core.errors import ConfigError
from lightning_core.gateway.server import GatewayServer
from lightning_core.insight.counterfactual import ForkResult, read_fork
from lightning_core.plugins import Plugins
from lightning_core.prompts import read_declared
from lightning_core.records.linking import answering
from lightning_core.records.types import TRIED, Call, Rollout, Run
from lightning_core.runner.config import read_config
from lightning_core.runner.tagging import tagging
from lightning_core.stores.base import Store
from lightning_core.stores.versions import POLICY, get_version
from lightning_core.trainer.plan import RolloutPlan
from lightning_core.trainer.roles.gateway import make_gateway, refuse_policies, serving_run
from lightning_core.trainer.roles.runner import name_of, rollout_config, running
from lightning_core.trainer.settings import Settings


def forkable(calls: Sequence[Call]) -> list[Call]:
    """The calls on record that the gateway answered, in the order they began."""
    return answering([call for call in calls if call.endpoint is None])


def check_forkable(run: Run, rollout: Rollout, solve: Callable[..., Any]) -> None:
    """Raise ConfigError for a rollout with which none can be compared, and for an app of another run."""
    config = read_config(run)
    if config is not None and config.solve != name_of(solve):
        raise ConfigError(
            f"run {run.id!r} is of the function {config.solve!r}, and the first fit() of this script has "
            f"{name_of(solve)!r}; give the script that the run was begun with"
        )
    if config is not None and config.judged:
        raise ConfigError(
            f"a judge rewards the rollouts of run {run.id!r} in groups, so none can fork by itself"
        )
    if rollout.reward is None:
        raise ConfigError(
            f"rollout {rollout.id!r} is {rollout.status} without a reward, so nothing compares with it"
        )
    if rollout.sampling.temperature == 0:
        raise ConfigError(
            f"rollout {rollout.id!r} was greedy, so every other reply would equal the one on record; give a "
            "sampled rollout, such as one of training"
        )


async def run_forks(
    store: Store,
    run: Run,
    rollout: Rollout,
    calls: Sequence[Call],
    samples: int,
    *,
    settings: Settings,
    solve: Callable[..., Any],
    plugins: Plugins,
    on_finished: Callable[[Rollout], None] | None = None,
) -> Mapping[str, list[ForkResult]]:
    """Run `samples` rollouts that fork at each of the calls; returns their ends by call id.

    Raises NotFoundError if a version of the weights that answered a call is deleted.
    """
    refuse_policies(run, "a fork")
    versions = await store.list_resources(run.id, POLICY)
    for call in calls:
        get_version(versions, call.policy_version or 0)
    trial = await _begin(store, run)
    asked = {
        call.id: RolloutPlan(trial.id, rollout.step, version=call.policy_version).fork(
            rollout, call.id, samples
        )
        for call in calls
    }
    status = "failed"
    try:
        async with AsyncExitStack() as stack:
            upstream = await stack.enter_async_context(serving_run(store, run, plugins))
            server = await stack.enter_async_context(GatewayServer(make_gateway(store, trial, upstream)))
            stack.enter_context(tagging(plugins))
            await stack.enter_async_context(
                running(
                    solve,
                    store,
                    trial,
                    read_config(run) or rollout_config(settings, solve),
                    worker=f"{trial.id}/worker",
                    concurrency=settings.concurrency,
                    workers=settings.workers,
                    gateway_url=server.url,
                    on_finished=on_finished,
                )
            )
            every = [each for forks in asked.values() for each in forks]
            await store.enqueue(every)
            ended = {each.id: each for each in await store.wait_finished([each.id for each in every])}
            recorded = await store.get_calls(ended)
        status = "finished"
    finally:
        await store.put_run(trial.model_copy(update={"status": status}))
    return {
        call_id: [read_fork(ended[each.id], recorded[each.id]) for each in forks]
        for call_id, forks in asked.items()
    }


async def _begin(store: Store, run: Run) -> Run:
    """A trial of the run, with its prompts."""
    trial = Run(
        id=f"{run.id}-fork-{secrets.token_hex(4)}",
        config={**run.config, TRIED: run.id},
        folder=run.folder,
        secret=secrets.token_hex(32),
        provenance=run.provenance,
    )
    await store.put_run(trial)
    for name in read_declared(run):
        for version in await store.list_resources(run.id, name):
            await store.put_resource(version.model_copy(update={"run_id": trial.id}))
    return trial
