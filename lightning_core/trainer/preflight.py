"""Pre-flight: what a run would train, on what, and with how much memory, before anything is started.

The backend says what it needs and which settings would fit. Everything else that a start refuses is refused
where it is checked.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lightning_core.algorithms.base import Algorithm
from lightning_core.backends.base import Backend, check_backend, check_policies
from lightning_core.backends.preflight import Check, RunPlan, gib, trial
from lightning_core.backends.settings import PolicyOptions
from lightning_core.backends.weights.sizes import Disk
from lightning_core.credit.base import Credit
from lightning_core.errors import ConfigError, LightningError
from lightning_core.plugins import load_plugins
from lightning_core.records.types import Task
from lightning_core.stores.versions import POLICY
from lightning_core.trainer.folder import RUNS
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
from lightning_core.trainer.versions import KEPT

COLOURS = {"ok": "green", "fails": "red", "unknown": "yellow"}


def plan_run(settings: Settings, train: Sequence[Task], validation: Sequence[Task]) -> RunPlan:
    """The run in facts and checks: the trainer's, and the backend's if it has a plan.

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
    further = settings.named_policies if callable(getattr(backend, "another", None)) else []
    named = {each.name: _ask_policy(backend, each, phases) for each in further}
    facts = (*_facts(settings, phases, train, validation), ("backend", backend.name), *own.facts)
    facts = (*facts, *_policy_facts(own, named))
    checks = (trial("options", go_together), *own.checks, *_policy_checks(own, named))
    disks = [astuple(each.disk) for each in (own, *named.values()) if each.disk is not None]
    if len(disks) <= len(named):
        return RunPlan(facts, checks)
    disk = Disk(*map(sum, zip(*disks, strict=True)))
    return RunPlan((*facts, _disk_fact(settings, disk)), (*checks, _check_disk(settings, disk)))


def _most_on_disk(settings: Settings, disk: Disk) -> int:
    """Bytes at the worst moment: one checkpoint is written before the oldest goes, the best version is kept,
    and the policy is exported."""
    return ((settings.keep_checkpoints or KEPT) + 1) * disk.checkpoint + 2 * disk.policy


def _disk_fact(settings: Settings, disk: Disk) -> tuple[str, str]:
    after = disk.policy + (settings.keep_checkpoints or 0) * disk.checkpoint
    if settings.keep_checkpoints is None:
        after += min(disk.policy, disk.checkpoint)
    most = gib(_most_on_disk(settings, disk))
    return "disk", f"up to {most} while it trains, {gib(after)} afterwards; the records of calls come on top"


def _check_disk(settings: Settings, disk: Disk) -> Check:
    """Whether the run's folder has room for the checkpoints."""
    place = Path(settings.folder or RUNS).absolute()
    while not place.exists():
        place = place.parent
    free, most = shutil.disk_usage(place).free, _most_on_disk(settings, disk)
    told = f"{gib(free)} are free in {str(place)!r}"
    if free < most:
        told += f", and checkpoints take up to {gib(most)}: free some, or give another folder"
    return Check("disk", free >= most, told)


def check_options(settings: Settings, phases: Sequence[ResolvedPhase], backend: Backend) -> None:
    """Raise ConfigError for options that would do nothing, or that the backend can't honour."""
    if settings.searches and not phases and settings.judge is not None:
        raise ConfigError(
            "judge=... compares the rollouts of a group, and a search has none; leave judge out, or add a "
            "phase with rollouts"
        )
    if phases or not settings.searches:
        check_signals(phases, air=bool(settings.air), judge=settings.judge is not None)
    check_judge(settings.judge, phases)
    if settings.policies:
        _check_policies(settings, phases, backend)
    for phase in phases if settings.served_model is not None else ():
        check_backend(backend, phase.algorithm, first_phase=phase.first == 0)


def _check_policies(settings: Settings, phases: Sequence[ResolvedPhase], backend: Backend) -> None:
    """Raise ConfigError, by name, for what does not go with several policies."""
    named = f"policies={settings.agent_policies!r}"
    if settings.served_model is None:
        raise ConfigError(f"{named}, and no model is trained: leave policies out, or give model=...")
    if settings.searches:
        raise ConfigError(
            f"{named} with a search for prompts: search with one policy, then train several in another run"
        )
    if "gateway" in settings.remote_roles:
        raise ConfigError(
            f"{named} with a remote gateway: a rollout is pinned to one version, and each policy has its "
            "own; let the gateway be the trainer's own"
        )
    for phase in phases:
        algorithm = phase.algorithm
        if algorithm.learns_from is not None:
            raise ConfigError(
                f"{named} with {algorithm.name!r}, which learns from demonstrations: train on them first, in "
                "a run with one policy, and begin this one with the model that it exports"
            )
        if algorithm.critic is not None:
            raise ConfigError(
                f"{named} with {algorithm.name!r}, which has a critic: use GRPO() or another without"
            )
        if algorithm.replay:
            raise ConfigError(f"{named} with replay={algorithm.replay!r}: give replay=0")
    check_policies(backend, settings.named_policies)


def _ask(backend: Backend, phases: Sequence[ResolvedPhase]) -> RunPlan:
    """The backend's part; a backend of a plugin may have none."""
    tell: Any = getattr(backend, "plan_run", None)
    if not callable(tell):
        return RunPlan()
    try:
        own: RunPlan = tell([phase.algorithm for phase in phases])
    except LightningError as problem:
        return RunPlan(checks=(Check("model", False, str(problem)),))
    return own


def _ask_policy(backend: Backend, policy: PolicyOptions, phases: Sequence[ResolvedPhase]) -> RunPlan:
    """The backend's part for a named policy; one that it can't have is refused by the options' check."""
    try:
        return _ask(backend.another(policy), phases)
    except LightningError:
        return RunPlan()


def _policy_facts(own: RunPlan, named: Mapping[str, RunPlan]) -> Iterator[tuple[str, str]]:
    """The lines of named policies that are not those of the run's own."""
    known = dict(own.facts)
    for policy, plan in named.items():
        for name, value in plan.facts:
            if known.get(name) != value:
                yield f"policy {policy}, {name}", value


def _policy_checks(own: RunPlan, named: Mapping[str, RunPlan]) -> Iterator[Check]:
    """Whether all policies fit into memory together: updates are made one after the other, and the rest is
    there at the same time."""
    if not named:
        return
    for policy, plan in named.items():
        yield from (
            Check(f"policy {policy}", False, each.told) for each in plan.checks if each.holds is False
        )
    uses = {name: plan.memory.uses[0] for name, plan in {POLICY: own, **named}.items() if plan.memory}
    if len(uses) <= len(named):
        yield Check("policies", None, "the memory of all policies together is not known")
        return
    need = sum(use.held for use in uses.values()) + max(use.need - use.held for use in uses.values())
    there = uses[POLICY].there
    shares = ", ".join(f"{name} {gib(use.need)}" for name, use in uses.items())
    told = f"{gib(need)} of {gib(there or 0)} of memory for all of them; one by one: {shares}"
    if there is not None and need > there:
        told += f"; {gib(need - there)} too little: give one a smaller model or adapters, or name fewer"
    yield Check("policies", None if there is None else need <= there, told)


def show_plan(plan: RunPlan, console: Console) -> None:
    """Print it as one table."""
    table = Table(title="What this run would be", title_justify="left", show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in plan.facts:
        table.add_row(name, Text(value))
    table.add_section()
    for check in plan.checks:
        told = Text.assemble((check.verdict, COLOURS[check.verdict]), f": {check.told}")
        table.add_row(f"{check.name}?", told)
    console.print(table)
    failed = sum(check.holds is False for check in plan.checks)
    ready = "every check that can be made here holds" if not failed else f"{failed} of the checks would fail"
    console.print(f"nothing was started or written; {ready}", soft_wrap=True)


def _facts(
    settings: Settings,
    phases: Sequence[ResolvedPhase],
    train: Sequence[Task],
    validation: Sequence[Task],
) -> Iterable[tuple[str, str]]:
    yield "agents", ", ".join(settings.patterns) if settings.patterns else "all"
    if settings.policies:
        yield "policies", ", ".join(f"{agent}: {name}" for agent, name in settings.agent_policies.items())
        for policy in settings.named_policies:
            if policy.changes:
                own = ", ".join(f"{name}={value!r}" for name, value in policy.changes.items())
                yield f"policy {policy.name}", own
    for phase in phases:
        steps = f"updates {phase.first + 1} to {phase.end}" if len(phases) > 1 else f"{phase.end} updates"
        yield "algorithm", f"{_algorithm(phase.algorithm)}; {steps}"
        yield "a step", _step(phase.algorithm)
    for step, search in settings.searches.items():
        said = f"step {step + 1}, {search.name}, at most {search.budget} rollouts, {search.repeats} a trial"
        yield (
            "search",
            f"{said}; prompts {', '.join(settings.declared_prompts) or settings.prompts or 'none'}",
        )
    passes = sum(
        (phase.end - phase.first) * phase.algorithm.tasks_per_step
        for phase in phases
        if phase.algorithm.learns_from is None
    )
    turns = f", each used {passes / len(train):.1f} times" if train else ""
    yield "tasks", f"{len(train)} to train on{turns}; {len(validation)} held out"
    if not phases:
        return
    times = 2 + len(settings.evaluations_between)
    each = len(EVALUATIONS) * len(validation)
    yield "evaluations", f"{times} of {each} rollouts, each task {' and '.join(EVALUATIONS)}"


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
