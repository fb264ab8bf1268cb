"""`agentlightning runs`, `show` and `plugins`: what is there, as tables."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lightning_core.air.report import RuleLine, rule_lines
from lightning_core.cli.origin import origin_lines
from lightning_core.cli.rollouts import LISTED, find_rollouts, open_run, show_newest
from lightning_core.plugins import load_plugins
from lightning_core.presence import living
from lightning_core.stores.base import Store
from lightning_core.trainer.display import (
    agent_table,
    alert_line,
    describe_staleness,
    phase_line,
    success_table,
)
from lightning_core.trainer.report import find_phases, terminal_curve
from lightning_core.trainer.summary import Summary
from lightning_core.types import Member, Metrics


def list_runs(folder: Path) -> None:
    """One line for each run of the folder."""
    table = Table(title=f"runs in {folder}")
    for column in ("run", "steps", "seed", "sampled", "greedy", "seconds"):
        table.add_column(column, justify="left" if column == "run" else "right")
    found = sorted((path.parent for path in folder.glob("*/run.json")), reverse=True)
    for path in found:
        summary = find_summary(path)
        if summary is None:
            table.add_row(path.name, "unfinished: resume it with train --resume", "", "", "", "")
            continue
        table.add_row(
            path.name,
            str(summary.steps),
            str(summary.seed),
            *(
                f"{getattr(summary.before, kind):.2f} → {getattr(summary.after, kind):.2f}"
                if summary.before and summary.after
                else "-"
                for kind in ("sampled", "greedy")
            ),
            f"{summary.train_seconds:.0f}",
        )
    console = Console()
    console.print(
        table if found else f"no runs in {str(folder)!r}; start one with: agentlightning train SCRIPT"
    )


async def show_run(path: Path) -> None:
    """Curve, success, rollouts and agents of one run, finished or not."""
    console = Console()
    async with open_run(path) as (store, run_id):
        run = await store.find_run(run_id)
        metrics = await store.list_metrics(run_id)
        newest = await find_rollouts(store, run_id, LISTED)
        total = sum(one.count for one in await store.count_rollouts(run_id))
        members = await store.list_members(run_id)
        alerts = await store.list_alerts(run_id)
        rules = await _rules(store, run_id) if _automatic(metrics) else []
    console.print(f"run {run_id}: {run.status if run else 'not begun'}, {len(metrics)} steps")
    if run and run.provenance:
        console.print(origin_lines(run.provenance), soft_wrap=True)
    if members:
        console.print(member_table(members))
    if len(phases := find_phases(run)) > 1:
        console.print(phase_line(phases, len(metrics)), highlight=False)
    console.print(terminal_curve(metrics), markup=False, highlight=False)
    for alert in alerts:
        console.print(alert_line(alert))
    show_newest(newest, total, path, console)
    if rules:
        console.print(rule_table(rules))
    summary = find_summary(path)
    if summary is None:
        console.print("not finished: no summary yet")
        return
    if summary.before and summary.after:
        console.print(success_table(summary.before, summary.after))
    console.print(agent_table(summary))
    skipped = f"{summary.zero_variance_groups} groups of equal rewards left out"
    console.print(f"{summary.rollouts} rollouts, {summary.failures} failed, {skipped}")
    console.print(describe_staleness(summary.staleness_mean, summary.staleness_max) or "trained on-policy")


def _automatic(metrics: Sequence[Metrics]) -> bool:
    """Whether any step had automatic intermediate rewards: only then is what gave them looked up."""
    return any(name.startswith("air/") and value for one in metrics for name, value in one.values.items())


async def _rules(store: Store, run_id: str) -> list[RuleLine]:
    trained = await store.find_rollouts(run_id, split="train")
    return rule_lines(trained, await store.get_rewards([rollout.id for rollout in trained]))


def member_table(members: Sequence[Member]) -> Table:
    """Who plays which role, where, and when each was last seen."""
    table = Table(title="at work")
    for column in ("role", "name", "host", "process", "address", "last seen"):
        table.add_column(column, justify="right" if column in ("process", "last seen") else "left")
    alive = living(members)
    for member in members:
        seen = f"{max(0.0, time.time() - member.seen_at):.0f} s ago"
        place = [str(member.data.get(name, "-")) for name in ("host", "pid")]
        row = (member.role, member.name, *place, member.url or "-", seen)
        table.add_row(*map(Text, row), style=None if member in alive else "red")
    return table


async def list_alerts(path: Path) -> None:
    """The alerts of one run, with the time of each."""
    console = Console()
    async with open_run(path) as (store, run_id):
        alerts = await store.list_alerts(run_id)
    for alert in alerts:
        said = time.strftime("%Y-%m-%d %H:%M:%S  ", time.localtime(alert.created_at))
        console.print(Text(said, "dim") + alert_line(alert))
    if not alerts:
        console.print(f"no alerts in run {run_id}")


def rule_table(lines: Sequence[RuleLine]) -> Table:
    """What each rule of AIR gave, and whether its signals have become fewer."""
    table = Table(
        title="automatic intermediate rewards",
        caption="signals for each rollout in the first steps and in the last",
    )
    for column in ("rule", "signals", "sum", "rollouts", "first steps", "last steps"):
        table.add_column(column, justify="left" if column == "rule" else "right")
    for line in lines:
        rates = f"{line.first:.2f}", f"{line.last:.2f}"
        table.add_row(Text(line.rule), f"{line.count:,}", f"{line.total:+.2f}", f"{line.share:.0%}", *rates)
    return table


def find_summary(path: Path) -> Summary | None:
    """The summary of a run, if it has one that can be read."""
    try:
        return Summary.model_validate_json((path / "summary.json").read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


def list_plugins() -> None:
    """One line for each plugin; then those that are broken, with the reason."""
    plugins = load_plugins()
    table = Table(title="plugins")
    for column in ("name", "version", "hooks"):
        table.add_column(column)
    for name, version, hooks in plugins.list():
        table.add_row(name, version, ", ".join(hooks))
    console = Console()
    console.print(table)
    for name, problem in plugins.broken.items():
        console.print(f"[red]broken[/red] {name}: {problem}")
