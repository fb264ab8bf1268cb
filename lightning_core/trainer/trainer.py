"""`Trainer`: the one object a user makes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

from rich.console import Console

from lightning_core import telemetry
from lightning_core.air.rules import AIR
from lightning_core.alerts.watch import Alerts
from lightning_core.algorithms.base import Algorithm, Phase
from lightning_core.algorithms.grpo import GRPO
from lightning_core.errors import ConfigError, StoreError, TrainingStopped
from lightning_core.judge.judge import Judge
from lightning_core.ranges import check_range
from lightning_core.runner import FailurePolicy
from lightning_core.runner.executor import Executor
from lightning_core.runner.packing import check_not_loading
from lightning_core.trackers.base import Tracker
from lightning_core.trainer.choosing import choose
from lightning_core.trainer.course import asks_for_rollouts, count_steps
from lightning_core.trainer.display import Display
from lightning_core.trainer.dry import outline_run, show_outline
from lightning_core.trainer.elsewhere import make_elsewhere
from lightning_core.trainer.folder import RunFolder, choose_folder
from lightning_core.trainer.loop import Loop
from lightning_core.trainer.opening import open_run
from lightning_core.trainer.plan import make_tasks
from lightning_core.trainer.report import terminal_curve, transcripts, write_report
from lightning_core.trainer.retention import Retention
from lightning_core.trainer.session import Session, Solve
from lightning_core.trainer.summary import Summary
from lightning_core.trainer.watching import Watching
from lightning_core.trainer.working import work
from lightning_core.types import Role, Task

T = TypeVar("T")
_overrides: ContextVar[Mapping[str, Any] | None] = ContextVar("lightning_overrides", default=None)


@contextmanager
def overrides(values: Mapping[str, Any]) -> Iterator[None]:
    """Let every trainer that fits inside use these settings (the command line's flags) over its own."""
    token = _overrides.set({name: value for name, value in values.items() if value is not None})
    try:
        yield
    finally:
        _overrides.reset(token)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer:
    """Trains the model behind the named agents of an app from the app's own rewards."""

    model: str | Path = "tiny"
    """A transformers folder, a name on the hub, or "tiny", the small model that ships with the package. The
    local backend takes architectures like Llama's and Qwen's."""
    agents: Sequence[str] | str | None = None
    """Names or globs of the agents to train; None trains all."""
    algorithm: Algorithm | str | Sequence[Phase] = field(default_factory=GRPO)
    """An algorithm with its options, or the name of one with its defaults; several in turn as `Phase`s."""
    backend: Any = "local"
    """A backend's name, or a backend object, which then has the model instead of `model`."""
    store: str | None = None
    """URL of the store; by default an SQLite file in the run's folder."""
    steps: int | None = None
    """Updates to make: by default 40, or as many as the phases have."""
    folder: str | Path | None = None
    """Where the run lies; by default `runs/<date-time>`."""
    resume: bool = False
    """Go on with the run in `folder`; if none is given, with the newest in `runs/`."""
    seed: int = 0
    elsewhere: Sequence[str] | str = ()
    """Roles that other processes play: "runner" (`agentlightning worker`), "gateway" (`agentlightning
    gateway`) or both. They meet in the store; see docs/machines.md."""
    host: str = "127.0.0.1"
    """Where the gateway listens; by default only this machine can reach it."""
    port: int | None = None
    """By default a free one, which a resumed run keeps."""
    address: str | None = None
    """URL at which workers reach the gateway, if it is another than its host and port say."""
    concurrency: int = 32
    """Rollouts at the same time. With 64, the connection pool of the app's own HTTP client costs a third more
    CPU per call than with 32 (it looks at every connection at each request); below 16 the engine idles."""
    timeout: float | None = 300.0
    """Seconds one rollout may take."""
    executor: Executor | str = "asyncio"
    """Where rollouts run: "asyncio" (in this process), "processes", "ray", or an executor with options."""
    on_failure: FailurePolicy = field(default_factory=FailurePolicy)
    air: AIR | bool | None = None
    """Automatic intermediate rewards: True for the default rules, or an `AIR` of your own."""
    judge: Judge | None = None
    """Gives the rollouts of each group their final reward. Evaluations are not judged: there the reward of
    `solve` counts."""
    alerts: Alerts | bool = True
    """Say when something about the run looks wrong: False for nothing, or an `Alerts` with thresholds of your
    own. An alert never stops a run."""
    trackers: Sequence[Tracker | str] | str = ()
    """Where else the numbers go: "tensorboard", "wandb", "mlflow", or objects such as
    `trackers.wandb.Wandb("my-project")`. One that fails stops nothing."""
    evaluate_every: int | None = None
    """Also evaluate after every so many steps; before and after training it is done anyway."""
    breakdown: str | None = None
    """A field of the tasks' input by which success is shown separately, such as the kind of question."""
    checkpoint_every: int = 1
    keep_checkpoints: int | Retention = 2
    """How many of the newest checkpoints are kept, to resume from; a `Retention` says more. The best
    version by evaluation is kept too, and never deleted is what something points at."""
    progress: bool = True
    """Show progress on the terminal (standard error)."""

    def __post_init__(self) -> None:
        counts = {
            "steps": 0,
            "concurrency": 1,
            "checkpoint_every": 1,
            "evaluate_every": 1,
        }
        for name, least in counts.items():
            value = getattr(self, name)
            if value is not None:
                check_range(name, value, least=least, whole=True)
        if not isinstance(self.keep_checkpoints, Retention):
            check_range("keep_checkpoints", self.keep_checkpoints, least=1, whole=True)
        if self.address is not None and not self.address.startswith(("http://", "https://")):
            raise ConfigError(f"address={self.address!r}: must be a URL, such as 'http://trainer.local:8000'")
        if "gateway" in self.roles_elsewhere:
            self._check_gateway_elsewhere()
        if self.agents is not None and not self.agents:
            raise ConfigError("agents=[] trains nobody: give names or globs, or None to train all")
        if self.timeout is not None:
            check_range("timeout", self.timeout, above=0)

    @property
    def total_steps(self) -> int:
        """Updates to make in all."""
        return count_steps(self.algorithm, self.steps)

    @property
    def patterns(self) -> tuple[str, ...] | None:
        """`agents` as a tuple; a single string is one pattern."""
        if self.agents is None:
            return None
        return (self.agents,) if isinstance(self.agents, str) else tuple(self.agents)

    def _check_gateway_elsewhere(self) -> None:
        """Raise ConfigError for what only a gateway in this process can do."""
        given = {"host": self.host != "127.0.0.1", "port": self.port, "address": self.address}
        for name, value in given.items():
            if value:
                raise ConfigError(
                    f"{name}={getattr(self, name)!r} is of the trainer's own gateway, and the gateway is "
                    f"elsewhere: leave {name} away here, and give it to `agentlightning gateway`"
                )
        if self.checkpoint_every != 1:
            raise ConfigError(
                f"checkpoint_every={self.checkpoint_every!r}: a gateway elsewhere serves what was saved, so "
                "each version must be; leave checkpoint_every at 1"
            )

    @property
    def roles_elsewhere(self) -> frozenset[Role]:
        """`elsewhere` as a set; a single string is one role."""
        return make_elsewhere(self.elsewhere, self.store)

    def fit(
        self,
        solve: Solve,
        *,
        train: Iterable[Task | Mapping[str, Any]] = (),
        validation: Iterable[Task | Mapping[str, Any]] = (),
    ) -> Summary:
        """Train on `train`, evaluate on `validation` before and after, and write the run's folder.

        SFT on demonstrations needs no `train`.
        `solve(task)` runs the app once and returns the reward, a number from -1e9 to 1e9; it may be async.
        Afterwards the folder holds the trained policy (`policy/`, a transformers folder),
        `summary.json`, `curve.png` and everything recorded. Raises UnknownAgentError, before anything
        is learnt from it, for a pattern in `agents` that is misspelt, or if none of them matches any
        call. An exception inside `solve` ends that rollout only; Ctrl-C ends as TrainingStopped, and the run
        can be resumed.

        In a worker (`agentlightning worker`) it runs rollouts of a run that is trained elsewhere, and does
        not return: the script ends here, once that run is finished. In a dry run (`agentlightning train
        --dry-run`) it prints what the run would be, starts and writes nothing, and ends the script.
        """
        check_not_loading()
        telemetry.obey()
        chosen = dict(_overrides.get() or {})
        joining, dry = chosen.pop("joining", None), chosen.pop("dry_run", False)
        trainer = choose(self, chosen)
        if joining is not None:
            _run(work(trainer, joining, solve))
            raise SystemExit(0)
        tasks = make_tasks(train, "train"), make_tasks(validation, "validation")
        if not tasks[0] and trainer.total_steps and asks_for_rollouts(trainer.algorithm):
            raise ConfigError("train is empty: give at least one task")
        if trainer.breakdown is not None and not all(trainer.breakdown in task.input for task in tasks[1]):
            raise ConfigError(f"breakdown={trainer.breakdown!r} is not a field of every validation task")
        path = choose_folder(trainer.folder, resume=trainer.resume)
        if dry:
            show_outline(outline_run(trainer, path, *tasks), Console())
            raise SystemExit(0)
        with RunFolder(path, resume=trainer.resume) as folder:
            try:
                return _run(_fit(trainer, folder, solve, *tasks))
            except KeyboardInterrupt:
                raise TrainingStopped(path) from None


async def _fit(
    trainer: Trainer, folder: RunFolder, solve: Solve, train: list[Task], validation: list[Task]
) -> Summary:
    display = Display(enabled=trainer.progress, steps=trainer.total_steps)
    with display:
        display.note(f"run {folder.run_id} in {folder.path}")
        async with Session(trainer, folder, solve) as session:
            session.on_rollout = display.rollout_done
            session.on_note = display.note
            watching = Watching(session, display)
            run = await open_run(session, train, validation)
            try:
                checkpoint = folder.latest_checkpoint()
                first = checkpoint[0] if checkpoint else 0
                if first > trainer.total_steps:
                    raise ConfigError(f"{first} steps are made already: resume with steps={first} or more")
                await session.begin(run)
                display.begin(first)
                async with watching.watch(run, first):
                    await Loop(session, display, train, validation, watching).run(first)
                summary = await write_report(session.store, folder, trainer, session.backend.model)
                await session.backend.export(folder.policy)
                curve = terminal_curve(await session.store.list_metrics(run.id))
                shown = await transcripts(session.store, run.id, trainer.total_steps)
            except BaseException as problem:
                status = "stopped" if isinstance(problem, asyncio.CancelledError) else "failed"
                await asyncio.shield(session.store.put_run(run.model_copy(update={"status": status})))
                if isinstance(problem, OSError):
                    raise StoreError(
                        f"can't write the run's folder {str(folder.path)!r}: {problem}; "
                        "free some space, then resume"
                    ) from problem
                raise
            await session.store.put_run(run.model_copy(update={"status": "finished"}))
    display.finish(summary, folder.path, curve, shown)
    return summary


def _run(main: Coroutine[Any, Any, T]) -> T:
    """Run to the end; inside a running loop (a notebook) in a thread with a loop of its own."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
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
