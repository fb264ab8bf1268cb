"""Everything a training run has open: store and backend, and the roles that this process plays.

The roles share nothing but the store and the gateway's URL: here, or each on a machine of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

from lightning_core.backends.base import Backend, check_backend
from lightning_core.errors import ConfigError, TrainingError
from lightning_core.gateway.app import Gateway
from lightning_core.masking import without_password
from lightning_core.plugins import Plugins, load_plugins
from lightning_core.presence import Presence, make_member
from lightning_core.runner.executor import make_executor
from lightning_core.stores.base import Store
from lightning_core.tracing.openai_sdk import instrument
from lightning_core.trainer.course import Course, check_signals, make_courses
from lightning_core.trainer.embedded import serving_gateway, serving_runner
from lightning_core.trainer.folder import RunFolder
from lightning_core.trainer.intermediate import add_automatic, make_rulebook
from lightning_core.trainer.judging import check_judge
from lightning_core.trainer.lookout import Lookout
from lightning_core.trainer.playing import agents_of, make_runner, rules_of, tokens_of
from lightning_core.trainer.serving import make_upstream
from lightning_core.trainer.settings import Settings
from lightning_core.trainer.staleness import admitted, withdraw
from lightning_core.trainer.teaching import encode_all
from lightning_core.types import Call, Reward, Rollout, Run, Status, Trajectory

Solve = Callable[..., Any]
"""The user's function: takes a Task, runs the app once, returns the reward; may be async."""


class Session:
    """`async with Session(...)` opens store and backend; `begin` then starts what else is played here."""

    store: Store
    backend: Backend
    plugins: Plugins
    courses: list[Course]
    taught: dict[int, tuple[Trajectory, ...]]
    """The demonstrations of a phase, by its first step."""

    def __init__(self, trainer: Settings, folder: RunFolder, solve: Solve) -> None:
        self.trainer = trainer
        self.folder = folder
        self.solve = solve
        self.on_rollout: Callable[[Rollout], None] = lambda rollout: None
        self.on_note: Callable[[str], None] = lambda text: None
        self._stack = AsyncExitStack()
        self._serving: asyncio.Task[None] | None = None
        """The runner, if it is here."""
        self._lookout: Lookout | None = None
        """If anything is played elsewhere."""

    async def __aenter__(self) -> Session:
        async with AsyncExitStack() as stack:
            await self._open(stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    async def _open(self, stack: AsyncExitStack) -> None:
        trainer, folder = self.trainer, self.folder
        self.plugins = load_plugins()
        self.executor = make_executor(trainer.executor, self.plugins)
        if "runner" not in trainer.roles_elsewhere:
            self.executor.crew(self.solve, trainer.concurrency)  # what can't run there is refused at once
        self.courses = make_courses(trainer.phases, self.plugins)
        check_signals(self.courses, air=bool(trainer.air), judge=trainer.judge is not None)
        check_judge(trainer.judge, self.courses)
        self.rulebook = make_rulebook(trainer.air, self.plugins)
        self.store = await stack.enter_async_context(open_store(self._store_url(), self.plugins))
        self.backend = make_backend(trainer, self.plugins)
        for course in self.courses:
            check_backend(self.backend, course.algorithm, first_phase=course.first == 0)
        stack.push_async_callback(self.backend.close)
        await self.backend.start()
        self.taught = {
            course.first: encode_all(course.algorithm.teaching, self.backend, trainer.patterns)
            for course in self.courses
            if course.algorithm.teaching is not None
        }
        if (checkpoint := folder.latest_checkpoint()) is not None:
            await self.backend.load(checkpoint[1])

    async def begin(self, run: Run) -> None:
        """Play this process's roles in the run, which is in the store by now: from here on, enqueued rollouts
        are run and recorded."""
        stack, trainer, embedded = self._stack, self.trainer, f"{run.id}/embedded"
        await self.store.reclaim(embedded)
        made = self._made()
        await withdraw(self.store, run.id, self._admitted_until(made), made)
        await self.store.remove_member(run.id, "gateway", "trainer")  # of a trainer that was killed
        await self.store.remove_member(run.id, "runner", embedded)
        await stack.enter_async_context(Presence(self.store, make_member(run.id, "trainer", "trainer")))
        url = None
        if "gateway" not in trainer.roles_elsewhere:
            name = self.backend.upstream.model_name
            upstream = make_upstream(self.store, run.id, self.backend, name=name, embedded=True)
            stack.push_async_callback(upstream.close)
            gateway = Gateway(upstream, self.store, tokens_of(run), agents=agents_of(run))
            hosted = serving_gateway(gateway, self.store, run, self.folder, trainer)
            url = await stack.enter_async_context(hosted)
        if "runner" not in trainer.roles_elsewhere:
            stack.enter_context(instrument(self.plugins.who))
            runner = make_runner(
                self.solve,
                self.store,
                run,
                rules_of(trainer, self.solve),
                worker=embedded,
                concurrency=trainer.concurrency,
                gateway_url=url,
                executor=self.executor,
                on_finished=lambda rollout: self.on_rollout(rollout),
            )
            self._serving = await stack.enter_async_context(serving_runner(runner, self.store, run))
        if trainer.roles_elsewhere:
            await self._look_out(run)

    async def _look_out(self, run: Run) -> None:
        """Tell who is missing, now and while rollouts are waited for."""
        self._lookout = Lookout(
            self.store,
            run.id,
            self.trainer.roles_elsewhere,
            self._store_url(),
            on_rollout=lambda rollout: self.on_rollout(rollout) if self._serving is None else None,
            on_note=lambda text: self.on_note(text),
        )
        await self._lookout.look()

    def _store_url(self) -> str:
        """The store of a resumed run is the one it was begun with."""
        given, address = self.trainer.store, self.folder.read_address()
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
        total = self.trainer.total_steps
        return admitted(step, self.course(step), total).stop if step < total else step

    def pin(self, staleness: int = 0) -> int | None:
        """The version of the weights that must answer the rollouts asked for now.

        None where that is the current one in any case (the gateway in this process follows each update) or
        where older weights may answer. A gateway elsewhere hears of new weights a moment late.
        """
        elsewhere = "gateway" in self.trainer.roles_elsewhere
        return self.backend.policy_version if elsewhere and not staleness else None

    def course(self, step: int) -> Course:
        """The phase that makes update `step`."""
        return next(course for course in self.courses if step < course.end)

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
        if self._lookout is not None:
            return await self._lookout.wait(rollout_ids)
        return await self.store.wait_finished(rollout_ids)

    async def records(
        self, rollouts: Sequence[Rollout]
    ) -> tuple[dict[str, list[Call]], dict[str, list[Reward]]]:
        """What was recorded in the rollouts' last attempts: (calls, rewards) by rollout id.

        With AIR on, training rollouts have their automatic rewards from here on.
        """
        ids = [rollout.id for rollout in rollouts]
        calls, rewards = await self.store.get_calls(ids), await self.store.get_rewards(ids)
        if self.rulebook is not None:
            rewards = await add_automatic(self.store, self.rulebook, rollouts, calls, rewards)
        return calls, rewards


def open_store(url: str, plugins: Plugins) -> Store:
    """The store for a URL, by its scheme; enter it to open it."""
    store: Store = plugins.part("store", url.partition(":")[0])(url)
    return store


def make_backend(trainer: Settings, plugins: Plugins) -> Backend:
    """The backend named or given by the trainer's settings."""
    if isinstance(trainer.backend, str):
        backend: Backend = plugins.part("backend", trainer.backend)(model=trainer.model, seed=trainer.seed)
        return backend
    given: Backend = trainer.backend
    if str(trainer.model) not in ("tiny", given.model):
        raise ConfigError(
            f"model={str(trainer.model)!r} and a backend object with model {given.model!r}: "
            "give the model to the backend alone"
        )
    return given


def failures(rollouts: Sequence[Rollout]) -> list[Rollout]:
    """Those that did not succeed."""
    return [rollout for rollout in rollouts if rollout.status is not Status.SUCCEEDED]
