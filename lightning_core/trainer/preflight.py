"""Pre-flight: what a run would train, on what, and with how much memory, before anything is started.

The backend says what it needs and which settings would fit. Everything else that a start refuses is refused
where it is checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lightning_core.algorithms.base import Algorithm
from lightning_core.backends.base import Backend, check_backend
from lightning_core.backends.preflight import Check, Fact, Outline, trial
from lightning_core.credit.base import Credit
from lightning_core.errors import LightningError
from lightning_core.plugins import load_plugins
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


def outline_run(settings: Settings, train: Sequence[Task], validation: Sequence[Task]) -> Outline:
    """The run in facts and checks: the trainer's, and the backend's if it has an outline.

    Raises ConfigError for an unknown algorithm or backend.
    """
    plugins = load_plugins()
    phases = resolve_phases(settings.phases, plugins)
    backend = make_backend(settings, plugins)

    def go_together() -> str:
        check_options(settings, phases, backend)
        make_rulebook(settings.air, plugins)
        return f"algorithm and credit go together, and backend {backend.name!r} can do both"

    own = _ask(backend, phases)
    facts = (*_facts(settings, phases, own.context, train, validation), Fact("backend", backend.name))
    return Outline(facts + own.facts, (trial("options", go_together), *own.checks), own.context)


def check_options(settings: Settings, phases: Sequence[ResolvedPhase], backend: Backend) -> None:
    """Raise ConfigError for options that would do nothing, or that the backend can't honour."""
    check_signals(phases, air=bool(settings.air), judge=settings.judge is not None)
    check_judge(settings.judge, phases)
    for phase in phases:
        check_backend(backend, phase.algorithm, first_phase=phase.first == 0)


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


def _facts(
    settings: Settings,
    phases: Sequence[ResolvedPhase],
    context: int | None,
    train: Sequence[Task],
    validation: Sequence[Task],
) -> Iterable[Fact]:
    yield Fact("agents", ", ".join(settings.patterns) if settings.patterns else "all")
    for phase in phases:
        steps = f"updates {phase.first + 1} to {phase.end}" if len(phases) > 1 else f"{phase.end} updates"
        yield Fact("algorithm", f"{_algorithm(phase.algorithm)}; {steps}")
        yield Fact("a step", _step(phase.algorithm))
        if context is not None and phase.algorithm.learns_from is None:
            yield Fact("tokens a step", _tokens(phase.algorithm, context))
    passes = sum(
        (phase.end - phase.first) * phase.algorithm.tasks_per_step
        for phase in phases
        if phase.algorithm.learns_from is None
    )
    turns = f", each used {passes / len(train):.1f} times" if train else ""
    yield Fact("tasks", f"{len(train)} to train on{turns}; {len(validation)} held out")
    every = settings.evaluate_every
    times = 2 + (max(0, (settings.total_steps - 1) // every) if every else 0)
    each = len(EVALUATIONS) * len(validation)
    yield Fact("evaluations", f"{times} of {each} rollouts, each task {' and '.join(EVALUATIONS)}")


def _algorithm(algorithm: Algorithm) -> str:
    credit: str | Credit = algorithm.credit
    named = credit if isinstance(credit, str) else type(credit).__name__.lower()
    options = f"credit {named}, baseline {algorithm.baseline}, scale {algorithm.scale}"
    ahead = f", staleness {algorithm.staleness}" if algorithm.staleness else ""
    return f"{algorithm.name}, {options}, {algorithm.epochs} pass{'es' * (algorithm.epochs > 1)}{ahead}"


def _step(algorithm: Algorithm) -> str:
    if (given := algorithm.learns_from) is not None:
        return f"{given.batch_size} of {len(given.rows)} demonstrations"
    size, tasks = algorithm.group_size, algorithm.tasks_per_step
    more = f", up to {algorithm.dynamic_sampling} times as many again" if algorithm.dynamic_sampling else ""
    return f"{size * tasks} rollouts: {tasks} tasks, {size} of each{more}"


def _tokens(algorithm: Algorithm, context: int) -> str:
    """A bound: how many calls a rollout makes, and how long they are, is known only once it has run."""
    rollouts = algorithm.group_size * algorithm.tasks_per_step
    return (
        f"at most {rollouts * context:,} for each call that a rollout makes ({rollouts} x {context:,}); "
        "what calls have in common counts once"
    )
