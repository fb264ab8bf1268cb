"""A dry run: what a run would be, told without running a rollout, loading weights or writing a folder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lightning_core.algorithms.base import Algorithm
from lightning_core.backends.base import Backend, check_backend
from lightning_core.backends.outline import Check, Fact, Outline, trial
from lightning_core.credit.base import Credit
from lightning_core.errors import LightningError
from lightning_core.masking import without_password
from lightning_core.plugins import Plugins, load_plugins
from lightning_core.runner.executor import make_executor
from lightning_core.trainer.folder import RunFolder
from lightning_core.trainer.judging import check_judge
from lightning_core.trainer.parts import (
    ResolvedPhase,
    check_signals,
    make_backend,
    make_rulebook,
    resolve_phases,
)
from lightning_core.trainer.plan import EVALUATIONS
from lightning_core.trainer.settings import Settings
from lightning_core.types import Task

COLOURS = {"ok": "green", "fails": "red", "unknown": "yellow"}


def outline_run(
    trainer: Settings, folder: Path, train: Sequence[Task], validation: Sequence[Task]
) -> Outline:
    """The whole plan: the trainer's part, and the backend's where it can tell one.

    Raises ConfigError for an algorithm or a backend that there is none of.
    """
    plugins = load_plugins()
    phases = resolve_phases(trainer.phases, plugins)
    backend = make_backend(trainer, plugins)
    own = _ask(backend, phases)
    facts = (*_what(trainer, phases, own.context, train, validation), *_where(trainer, folder))
    checks = _checks(trainer, folder, phases, backend, plugins)
    return Outline(facts + own.facts, checks + own.checks, own.context)


def _ask(backend: Backend, phases: Sequence[ResolvedPhase]) -> Outline:
    """The backend's part; a backend of a plugin may have none."""
    tell: Any = getattr(backend, "outline", None)
    if not callable(tell):
        return Outline()
    try:
        own: Outline = tell([phase.algorithm for phase in phases])
    except LightningError as problem:
        return Outline(checks=(Check("model", False, str(problem)),))
    return own


def show_outline(outline: Outline, console: Console) -> None:
    """Print it as two tables."""
    facts = Table(title="What this run would be", title_justify="left", show_header=False)
    facts.add_column(no_wrap=True)
    facts.add_column(overflow="fold")
    for fact in outline.facts:
        facts.add_row(fact.name, Text(fact.value))
    checks = Table("check", "", "", title="Checks", title_justify="left", show_header=False)
    for check in outline.checks:
        checks.add_row(check.name, Text(check.verdict, COLOURS[check.verdict]), Text(check.told))
    console.print(facts, checks)
    failed = sum(check.holds is False for check in outline.checks)
    ready = "every check that can be made here holds" if not failed else f"{failed} of the checks would fail"
    console.print(f"nothing was started or written; {ready}", soft_wrap=True)


# facts ------------------------------------------------------------------------------------
def _what(
    trainer: Settings,
    phases: Sequence[ResolvedPhase],
    context: int | None,
    train: Sequence[Task],
    validation: Sequence[Task],
) -> Iterable[Fact]:
    yield Fact("agents", ", ".join(trainer.patterns) if trainer.patterns else "all")
    for phase in phases:
        steps = f"updates {phase.first + 1} to {phase.end}" if len(phases) > 1 else f"{phase.end} updates"
        yield Fact("algorithm", f"{_algorithm(phase.algorithm)}; {steps}")
        yield Fact("a step", _step(phase))
        if context is not None and phase.algorithm.teaching is None:
            yield Fact("tokens a step", _tokens(phase, context))
    passes = sum(
        (phase.end - phase.first) * phase.algorithm.tasks_per_step
        for phase in phases
        if phase.algorithm.teaching is None
    )
    turns = f", each used {passes / len(train):.1f} times" if train else ""
    yield Fact("tasks", f"{len(train)} to train on{turns}; {len(validation)} held out")
    every = trainer.evaluate_every
    times = 2 + (max(0, (trainer.total_steps - 1) // every) if every else 0)
    each = len(EVALUATIONS) * len(validation)
    yield Fact("evaluations", f"{times} of {each} rollouts, each task {' and '.join(EVALUATIONS)}")


def _algorithm(algorithm: Algorithm) -> str:
    credit: str | Credit = algorithm.credit
    named = credit if isinstance(credit, str) else type(credit).__name__.lower()
    options = f"credit {named}, baseline {algorithm.baseline}, scale {algorithm.scale}"
    ahead = f", staleness {algorithm.staleness}" if algorithm.staleness else ""
    return f"{algorithm.name}, {options}, {algorithm.epochs} pass{'es' * (algorithm.epochs > 1)}{ahead}"


def _step(phase: ResolvedPhase) -> str:
    algorithm = phase.algorithm
    if algorithm.teaching is not None:
        teaching = algorithm.teaching
        return f"{teaching.batch_size} of {len(teaching.demonstrations)} demonstrations"
    size, tasks = algorithm.group_size, algorithm.tasks_per_step
    more = f", up to {algorithm.refill} times as many again" if algorithm.refill else ""
    return f"{size * tasks} rollouts: {tasks} tasks, {size} of each{more}"


def _tokens(phase: ResolvedPhase, context: int) -> str:
    """A bound: how many calls a rollout makes, and how long they are, is known only once it has run."""
    rollouts = phase.algorithm.group_size * phase.algorithm.tasks_per_step
    return (
        f"at most {rollouts * context:,} for each call that a rollout makes ({rollouts} x {context:,}); "
        "what calls have in common counts once"
    )


def _where(trainer: Settings, folder: Path) -> Iterable[Fact]:
    yield Fact("folder", str(folder))
    yield Fact("store", without_password(trainer.store or RunFolder(folder, resume=trainer.resume).store_url))
    if "gateway" in trainer.roles_elsewhere:
        yield Fact("gateway", "elsewhere: agentlightning gateway")
    else:
        port = "a free port" if trainer.port is None else f"port {trainer.port}"
        reached = f", reached at {trainer.address}" if trainer.address else ""
        yield Fact("gateway", f"{trainer.host}, {port}{reached}")
    runner = f"{trainer.concurrency} at a time, by executor {_named(trainer.executor)}"
    yield Fact(
        "rollouts", "elsewhere: agentlightning worker" if "runner" in trainer.roles_elsewhere else runner
    )
    yield Fact("backend", _named(trainer.backend))


def _named(part: Any) -> str:
    return part if isinstance(part, str) else str(getattr(part, "name", None) or type(part).__name__)


# checks -----------------------------------------------------------------------------------
def _checks(
    trainer: Settings, folder: Path, phases: Sequence[ResolvedPhase], backend: Backend, plugins: Plugins
) -> tuple[Check, ...]:
    def check_options() -> str:
        check_signals(phases, air=bool(trainer.air), judge=trainer.judge is not None)
        check_judge(trainer.judge, phases)
        make_rulebook(trainer.air, plugins)
        for phase in phases:
            check_backend(backend, phase.algorithm, first_phase=phase.first == 0)
        return f"algorithm and credit go together, and backend {backend.name!r} can do both"

    def check_store() -> str:
        scheme = (trainer.store or "sqlite://").partition(":")[0]
        plugins.part("store", scheme)
        return scheme

    def check_executor() -> str:
        make_executor(trainer.executor, plugins)
        return _named(trainer.executor)

    checks = [trial("options", check_options), trial("store", check_store)]
    if "runner" not in trainer.roles_elsewhere:
        checks.append(trial("executor", check_executor))
    return (*checks, _folder(folder, resume=trainer.resume))


def _folder(folder: Path, *, resume: bool) -> Check:
    known = RunFolder(folder, resume=resume).address_file.exists()
    if known and not resume:
        return Check("folder", False, f"{str(folder)!r} already holds a run: --resume, or another folder")
    if resume and not known:
        return Check("folder", False, f"there is no run to resume in {str(folder)!r}")
    return Check("folder", True, "goes on with the run in it" if resume else "new")
