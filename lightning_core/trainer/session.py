"""Everything a training run has open: store and backend, and the roles that this process plays.

The roles share nothing but the store and the gateway's URL: here, or each on a machine of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

from lightning_core.backends.base import Backend
from lightning_core.errors import ConfigError, TrainingError
from lightning_core.heartbeat import Heartbeat, make_member
from lightning_core.masking import without_password
from lightning_core.plugins import Plugins, load_plugins
from lightning_core.runner.runner import prepare
from lightning_core.stores.base import Store
from lightning_core.trainer.demonstrations import encode_all
from lightning_core.trainer.folder import RunFolder
from lightning_core.trainer.observers import Observers
from lightning_core.trainer.parts import (
    ResolvedPhase,
    make_backend,
    make_rulebook,
    open_store,
    resolve_phases,
)
from lightning_core.trainer.plan import admitted, is_planned
from lightning_core.trainer.preflight import check_options
from lightning_core.trainer.roles.trainer import (
    RemoteWaiter,
    embedded_gateway,
    embedded_name,
    embedded_runner,
)
from lightning_core.trainer.settings import Settings
from lightning_core.types import Rollout, Run, Status, Trajectory

Solve = Callable[..., Any]
"""The user's function: takes a Task, runs the app once, returns the reward; may be async."""


class Session:
    """`async with Session(...)` opens store and backend; `begin` then starts what else is played here."""

    store: Store
    backend: Backend
    plugins: Plugins
    phases: list[ResolvedPhase]
    demonstrations: dict[int, tuple[Trajectory, ...]]
    """Those of a phase, by its first step."""

    def __init__(self, settings: Settings, folder: RunFolder, solve: Solve, observers: Observers) -> None:
        self.settings = settings
        self.folder = folder
        self.solve = solve
        self.observers = observers
        self._stack = AsyncExitStack()
        self._serving: asyncio.Task[None] | None = None
        """The runner, if it is here."""
        self._waiter: RemoteWaiter | None = None
        """If other processes play a role."""

    async def __aenter__(self) -> Session:
        async with AsyncExitStack() as stack:
            await self._open(stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    async def _open(self, stack: AsyncExitStack) -> None:
        settings, folder = self.settings, self.folder
        self.plugins = load_plugins()
        if "runner" not in settings.remote_roles:
            prepare(self.solve, settings.workers)  # what can't run there is refused at once
        self.phases = resolve_phases(settings.phases, self.plugins)
        self.rulebook = make_rulebook(settings.air, self.plugins)
        self.backend = make_backend(settings, self.plugins)
        check_options(settings, self.phases, self.backend)
        self.store = await stack.enter_async_context(open_store(self._store_url(), self.plugins))
        stack.push_async_callback(self.backend.close)
        await self.backend.start()
        self.demonstrations = {
            phase.first: encode_all(phase.algorithm.learns_from, self.backend, settings.patterns)
            for phase in self.phases
            if phase.algorithm.learns_from is not None
        }
        if (checkpoint := folder.latest_checkpoint()) is not None:
            await self.backend.load(checkpoint[1])

    async def begin(self, run: Run) -> None:
        """Play this process's roles in the run, which is in the store by now: from here on, enqueued rollouts
        are run and recorded."""
        stack, settings, embedded = self._stack, self.settings, embedded_name(run)
        await self.store.reclaim(embedded)
        made = self._made()
        await withdraw(self.store, run.id, self._admitted_until(made), made)
        await self.store.remove_member(run.id, "gateway", "trainer")  # of a trainer that was killed
        await self.store.remove_member(run.id, "runner", embedded)
        await stack.enter_async_context(Heartbeat(self.store, make_member(run.id, "trainer", "trainer")))
        url = None
        if "gateway" not in settings.remote_roles:
            gateway = embedded_gateway(settings, self.store, run, self.backend, self.folder)
            url = await stack.enter_async_context(gateway)
        if "runner" not in settings.remote_roles:
            runner = embedded_runner(
                settings,
                self.store,
                run,
                self.solve,
                self.plugins,
                gateway_url=url,
                on_finished=self.observers.rollout_ended,
            )
            self._serving = await stack.enter_async_context(runner)
        if settings.remote_roles:
            await self._wait_for_others(run)

    async def _wait_for_others(self, run: Run) -> None:
        """Tell who is missing, now and while rollouts are waited for."""
        self._waiter = RemoteWaiter(
            self.store,
            run.id,
            self.settings.remote_roles,
            self._store_url(),
            on_rollout=self.observers.rollout_ended if self._serving is None else lambda rollout: None,
            on_note=self.observers.note,
        )
        await self._waiter.look()

    def _store_url(self) -> str:
        """The store of a resumed run is the one it was begun with."""
        given, address = self.settings.store, self.folder.read_address()
        if address is not None and given is not None:
            begun, shown = without_password(address["store"] or "of its folder"), without_password(given)
            if shown != begun:
                raise ConfigError(
                    f"run {self.folder.run_id!r} was begun with store {begun!r}, not {shown!r}; "
                    "resume it without `store`"
                )
        return str(given or (address or {}).get("store") or self.folder.store_url)

    def _made(self) -> int:
        """Updates that the latest checkpoint holds."""
        checkpoint = self.folder.latest_checkpoint()
        return checkpoint[0] if checkpoint else 0

    def _admitted_until(self, step: int) -> int:
        """The first step that a run with so many updates may not yet ask for rollouts of."""
        total = self.settings.total_steps
        return admitted(step, self.phase(step), total).stop if step < total else step

    def pin(self, staleness: int = 0) -> int | None:
        """The version of the weights that must answer the rollouts asked for now.

        None where that is the current one in any case (the gateway in this process follows each update) or
        where older weights may answer. A remote gateway hears of new weights a moment late.
        """
        remote = "gateway" in self.settings.remote_roles
        return self.backend.policy_version if remote and not staleness else None

    def phase(self, step: int) -> ResolvedPhase:
        """The phase that makes update `step`."""
        return next(phase for phase in self.phases if step < phase.end)

    async def run(self, rollouts: Sequence[Rollout]) -> tuple[list[Rollout], bool]:
        """Enqueue the rollouts and wait until all are finished; says too whether any of them was new.

        Those already known are left as they are.
        """
        new = await self.store.enqueue(rollouts)
        if new < len(rollouts):
            await self._check_known(rollouts)
        waiting = asyncio.create_task(self._wait([rollout.id for rollout in rollouts]))
        serving = {self._serving} if self._serving is not None else set()
        try:
            await asyncio.wait({waiting, *serving}, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done() and self._serving is not None:
                await self._serving
                raise TrainingError("the runner stopped before the rollouts were finished")
            return await waiting, new > 0
        finally:
            waiting.cancel()

    async def _check_known(self, asked: Sequence[Rollout]) -> None:
        """Raise TrainingError if one of the ids stands for something else, which somebody else enqueued."""
        known = await self.store.get_rollouts([rollout.id for rollout in asked])
        for mine, stored in zip(asked, known, strict=True):
            if (stored.run_id, stored.step, stored.task) != (mine.run_id, mine.step, mine.task):
                raise TrainingError(
                    f"rollout {mine.id!r} of run {mine.run_id!r} is in the store already, for another "
                    f"task or run ({stored.run_id!r}, step {stored.step}); give this one another folder name"
                )

    async def _wait(self, rollout_ids: Sequence[str]) -> list[Rollout]:
        if self._waiter is not None:
            return await self._waiter.wait(rollout_ids)
        return await self.store.wait_finished(rollout_ids)


async def withdraw(store: Store, run_id: str, first: int, made: int) -> int:
    """Cancel the unfinished training rollouts of steps `first` and later, and the unfinished evaluations of
    what is not among the `made` updates; returns how many. Rollouts that others enqueued are left.

    A run that goes on from a checkpoint before those rollouts were admitted would sample them with weights
    older than the bound allows, or evaluate weights that are not made again yet. They are planned again when
    their step is collected, or evaluated.
    """
    unfinished = [
        rollout
        for status in (Status.QUEUED, Status.RUNNING)
        for rollout in await store.find_rollouts(run_id, status=status)
        if is_planned(rollout)
        and (rollout.step >= first if rollout.split == "train" else rollout.step > made)
    ]
    return await store.cancel([rollout.id for rollout in unfinished])
