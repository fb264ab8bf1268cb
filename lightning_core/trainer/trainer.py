"""`Trainer`: the one object a user makes."""

from __future__ import annotations

import asyncio
import errno
import logging
import threading
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextvars import copy_context
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

from lightning_core import telemetry
from lightning_core.backends.preflight import RunPlan
from lightning_core.errors import ConfigError, StoreError, TrainingStopped
from lightning_core.insight.status import ENDED
from lightning_core.plugins import load_plugins
from lightning_core.records.types import Run, Task
from lightning_core.runner.packing import check_not_loading
from lightning_core.stores.base import Store
from lightning_core.trainer.display import Display
from lightning_core.trainer.folder import RunFolder, absolute, choose_folder
from lightning_core.trainer.launch import current_launch, launching
from lightning_core.trainer.learners import Lines
from lightning_core.trainer.loop import Loop, spent
from lightning_core.trainer.observers import AlertObserver, Observers, Trackers, to_alerts
from lightning_core.trainer.parts import open_store
from lightning_core.trainer.plan import check_ids, count_shared, make_tasks
from lightning_core.trainer.preflight import plan_run
from lightning_core.trainer.record import open_run
from lightning_core.trainer.report import (
    find_evidence,
    summarise,
    terminal_curve,
    transcripts,
    write_report,
)
from lightning_core.trainer.roles.joining import Joining
from lightning_core.trainer.roles.runner import work
from lightning_core.trainer.rollouts import RolloutMaker
from lightning_core.trainer.searching import check_search
from lightning_core.trainer.session import Session, Solve
from lightning_core.trainer.settings import Settings
from lightning_core.trainer.summary import Summary, write_card
from lightning_core.trainer.versions import settle

log = logging.getLogger(__name__)

_AGAIN = " (begun again: the run that was there had made no update)"

T = TypeVar("T")
Tasks = Iterable[Task | Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer(Settings):
    """Trains the model behind the named agents of an app from the app's own rewards."""

    def fit(self, solve: Solve, *, train: Tasks = (), validation: Tasks = ()) -> Summary:
        """Train on `train`, evaluate on `validation` before and after, and write the run's folder.

        SFT on demonstrations needs no `train`.
        `solve(task)` runs the app once and returns the reward, a number from -1e9 to 1e9; it may be async.
        Afterwards the folder holds the trained policy (`policy/`, a transformers folder),
        `summary.json`, `curve.png` and everything recorded. Raises UnknownAgentError, before anything
        is learnt from it, for a pattern in `agents` that is misspelt, or if none of them matches any
        call. An exception inside `solve` ends that rollout only; Ctrl-C ends as TrainingStopped, and the run
        can be resumed.

        In a script that the command `agentlightning` runs, what the command line says counts: settings in
        place of these, and `plan` or `work` in place of `fit`, after which the script ends.
        """
        if (launch := current_launch()) is not None:
            with launching(None):
                call = launch.call or Trainer.fit
                summary: Summary = call(launch.apply(self), solve, train=train, validation=validation)
                return summary
        check_not_loading()
        telemetry.obey()
        tasks = self._make_tasks(train, validation)
        resume = self.resume is True or (self.resume == "auto" and _begun(self.folder))
        path = choose_folder(self.folder, resume=resume)
        again = not resume and _run(_never_learnt(path))
        with RunFolder(path, resume=resume, again=again) as folder:
            try:
                return _run(_fit(replace(self, resume=resume), folder, solve, *tasks))
            except KeyboardInterrupt:
                raise TrainingStopped(folder.path) from None

    def plan(self, *, train: Tasks = (), validation: Tasks = ()) -> RunPlan:
        """Returns the plan of `fit`: the tasks, the training and its memory; starts and writes nothing."""
        return plan_run(self, *self._make_tasks(train, validation))

    def work(self, solve: Solve, joining: Joining) -> None:
        """Run rollouts of a run that another process trains, until it is finished."""
        check_not_loading()
        telemetry.obey()
        _run(work(self, joining, solve))

    def _make_tasks(self, train: Tasks, validation: Tasks) -> tuple[list[Task], list[Task]]:
        tasks = make_tasks(train, "train"), make_tasks(validation, "validation")
        for part in tasks:
            check_ids(part)
        if not self.total_steps and not tasks[1]:
            raise ConfigError(
                "steps=0 trains nothing, and there are no validation tasks to evaluate: give steps=1 or more"
            )
        if not tasks[0] and self.total_steps and self.asks_for_rollouts:
            raise ConfigError("train is empty: give at least one task")
        for search in self.searches.values():
            check_search(search, self.prompts, *tasks)
        if self.group_by is not None and not all(self.group_by in task.input for task in tasks[1]):
            raise ConfigError(f"group_by={self.group_by!r} is not a field of every validation task")
        for field in (getattr(phase.algorithm, "curriculum", None) for phase in self.phases):
            if field is not None and not all(field in task.input for task in tasks[0]):
                raise ConfigError(f"curriculum={field!r} is not a field of every training task")
            if field is not None and self.judge is not None:
                raise ConfigError(
                    f"curriculum={field!r} goes by the app's own rewards, and a judge gives others: leave "
                    "one of the two out"
                )
        return tasks


async def _never_learnt(path: Path) -> bool:
    """Whether the folder holds a run that ended before its first update: it has nothing to go on from."""
    found = RunFolder(path, resume=True)
    if not found.checkpoints.is_dir() or found.latest_checkpoint() or (path / "summary.json").exists():
        return False
    address = found.read_address()
    if address is None or address["store"] is not None or not (path / "store.db").exists():
        return False  # another store keeps its records
    async with open_store(found.store_url, load_plugins()) as store:
        run = await store.find_run(found.run_id)
        return run is None or (run.status != "finished" and not await store.list_metrics(run.id, limit=1))


def _begun(folder: str | Path | None) -> bool:
    """Whether a trainer has taken the folder: one that was killed at once may have recorded its run."""
    return folder is not None and (Path(folder) / "lock").exists()


async def _fit(
    trainer: Trainer, folder: RunFolder, solve: Solve, train: list[Task], validation: list[Task]
) -> Summary:
    made = folder.latest_checkpoint()
    if made and made[0] > trainer.total_steps:
        raise ConfigError(f"the run already has {made[0]} steps: resume it with steps={made[0]} or more")
    with Display(enabled=trainer.progress, steps=trainer.total_steps) as display:
        observers = Observers(display)
        loading = ": loading its model" * (trainer.served_model is not None)
        observers.note(f"run {folder.run_id} in {folder.path}{loading}{_AGAIN * folder.began_again}")
        if shared := count_shared(train, validation):
            log.warning(
                "%d of %d validation tasks are training tasks too: the held-out reward then says nothing "
                "about new tasks; leave them out of one of the two",
                shared,
                len(validation),
            )
        if not trainer.total_steps:
            observers.note("steps=0: the policy is evaluated, and not trained")
        elif made and made[0] == trainer.total_steps:
            observers.note(f"all {made[0]} steps are done, nothing is trained: give more to go on (--steps)")
        async with Session(trainer, folder, solve, observers) as session, RolloutMaker(session) as maker:
            _add_observers(session)
            run = await open_run(session, train, validation)
            if not (trainer.store or "").startswith("memory:"):
                observers.note(f"to watch it in a browser: agentlightning console {folder.path}")
            try:
                versions = await _train(maker, run, train, validation)
                exported = await versions.export(best=trainer.export_best)
                store, paid = session.store, spent(session.backend)
                metrics, counts = await store.list_metrics(run.id), await store.count_rollouts(run.id)
                evidence = await find_evidence(store, run, metrics, counts)
                summary = await summarise(store, run, folder.path, evidence, exported=exported, spent=paid)
                await write_report(store, folder, summary)
                for each in session.learners:
                    write_card(each.folder, summary.model_copy(update={"model": str(each.backend.model)}))
                curve = terminal_curve(metrics)
                shown = await transcripts(store, run.id, summary.steps)
            except BaseException as problem:
                status = "stopped" if isinstance(problem, asyncio.CancelledError) else "failed"
                await asyncio.shield(_end(session.store, run, status, problem))
                if isinstance(problem, OSError) and _is_of(folder, problem):
                    raise StoreError(
                        f"can't write the run's folder {str(folder.path)!r}: {problem}; "
                        "free some space, then resume"
                    ) from problem
                raise
            await _end(session.store, run, "finished")
            if trainer.keep_checkpoints is None:
                for each in session.learners:
                    await settle(session.store, each.folder, each.backend, each.policy)
    display.report(summary, folder.path, curve, shown)
    return summary


def _is_of(folder: RunFolder, problem: OSError) -> bool:
    """Whether the disk refused to take more, or a file of the run's folder: an app's own functions, such as a
    judge's rubric, may fail to read or to connect as well."""
    full = problem.errno in (errno.ENOSPC, errno.EDQUOT)
    place = Path(absolute(Path(str(problem.filename or "/"))))
    return full or place.is_relative_to(absolute(folder.path))


async def _end(store: Store, run: Run, status: str, problem: BaseException | None = None) -> None:
    """Record how the run ended, in its record as it is by now, and the error of one that failed."""
    now = await store.find_run(run.id) or run
    why = {ENDED: f"{type(problem).__name__}: {problem}"} if status == "failed" else {}
    await store.put_run(now.model_copy(update={"status": status, "config": {**now.config, **why}}))


def _add_observers(session: Session) -> None:
    """Trackers and alert rules. Raises ConfigError for what there is not."""
    settings, observers = session.settings, session.observers
    observers.add(Trackers(settings.trackers, session.plugins, resumed=settings.resume is True))
    if (alerts := to_alerts(settings.alerts)) is not None:
        observers.add(
            AlertObserver(
                alerts,
                session.plugins,
                session.store,
                session.folder,
                total_steps=settings.total_steps,
                tell=observers.alert,
            )
        )


async def _train(maker: RolloutMaker, run: Run, train: Sequence[Task], validation: Sequence[Task]) -> Lines:
    """Make the updates; returns the versions of the weights."""
    session = maker.session
    checkpoint = session.folder.latest_checkpoint()
    first = checkpoint[0] if checkpoint else 0
    await maker.begin(run)
    history = [entry for entry in await session.store.list_metrics(run.id) if entry.step < first]
    async with session.observers.observe(run, history):
        loop = Loop(maker, train, validation)
        await loop.run(first, history)
    return loop.versions


def _run(main: Coroutine[Any, Any, T]) -> T:
    """Run to the end; inside a running loop (a notebook) in a thread with a loop of its own."""
    if not _in_loop():
        return asyncio.run(main)
    running: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = Future()
    outcome: Future[T] = Future()

    async def announced() -> T:
        running.set_result((asyncio.get_running_loop(), cast("asyncio.Task[Any]", asyncio.current_task())))
        return await main

    def target() -> None:
        try:
            outcome.set_result(asyncio.run(announced()))
        except BaseException as problem:
            outcome.set_exception(problem)

    context = copy_context()
    thread = threading.Thread(target=lambda: context.run(target), name="lightning-fit")
    thread.start()
    try:
        thread.join()
    except BaseException:  # the notebook's cell was interrupted: end the training, then let go of its folder
        loop, task = running.result()
        loop.call_soon_threadsafe(task.cancel)
        thread.join()
        raise
    return outcome.result()


def _in_loop() -> bool:
    """Whether this thread runs an event loop; asked apart, so that no error of a run hangs on that one's."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
