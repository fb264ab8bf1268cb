"""`agentlightning runs`, `show`, `alerts` and `plugins`: what runs have left, shown."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer
import typer.core
from rich.box import SIMPLE_HEAD
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from lightning_core.air.rulebook import RuleLine, rule_lines
from lightning_core.backends.preflight import gib
from lightning_core.cli import space
from lightning_core.cli.choosing import read_filter
from lightning_core.cli.rollouts import (
    LISTED,
    find_begun,
    open_run,
    reading,
    show_newest,
    show_rollouts,
)
from lightning_core.errors import LightningError
from lightning_core.insight.failures import group_failures
from lightning_core.insight.rewards import Change
from lightning_core.insight.status import BROKEN, ENDED, state_of
from lightning_core.insight.verdict import say, verdict
from lightning_core.plugins import load_plugins
from lightning_core.records.types import Member, Status
from lightning_core.stores.base import Store
from lightning_core.stores.heartbeat import living
from lightning_core.texts.terminal import Terminal
from lightning_core.trainer.display import (
    agent_table,
    alert_line,
    describe_staleness,
    failure_lines,
    held_out_table,
    phase_line,
    show_searches,
    spent_line,
    verdict_lines,
)
from lightning_core.trainer.folder import RunFolder
from lightning_core.trainer.report import (
    NAMED_VERSIONS,
    find_change,
    find_evidence,
    find_phases,
    model_name,
    summarise,
    terminal_curve,
    transcripts,
)
from lightning_core.trainer.summary import Summary, exported_note, find_summary

_ROLLOUT = "A rollout: its id, how the id begins or ends; or 'best' or 'worst' trained, or 'failed'"
_WHERE = "Only rollouts with this task, step, split, agent, status or field of the task; may be repeated."
_Run = Annotated[Path, typer.Argument(help="Folder of a run, such as runs/20260101-120000.")]


class _Listing(typer.core.TyperGroup):
    """`agentlightning runs [FOLDER]` is short for `agentlightning runs list [FOLDER]`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or args[0] not in {*self.commands, "--help"}:
            args = ["list", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(cls=_Listing, help="List runs; delete them, or what they need no more.")
app.command()(space.rm)
app.command()(space.prune)


@app.command("list")
def runs(
    folder: Annotated[Path, typer.Argument(help="Folder that holds the runs.")] = Path("runs"),
) -> None:
    """List the runs of a folder, the newest first: status, steps, reward before and after, disk, age."""
    asyncio.run(list_runs(folder, [path.parent for path in folder.glob("*/run.json")]))


def show(
    run: _Run,
    rollout: Annotated[str | None, typer.Option(help=_ROLLOUT)] = None,
    where: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help=_WHERE)] = None,
    full: Annotated[bool, typer.Option("--full", help="Shorten no text, list all, and say why.")] = False,
) -> None:
    """Show a run: curve, held-out reward before and after, figures of each agent, failures, and a verdict.

    A run that goes on is shown as far as it has come.
    With --rollout it shows one rollout as a tree of calls, tool calls, spans and rewards. With --full it also
    says why each call got its advantage. With --where it lists the matching rollouts, by task, step, split,
    agent, status, or a field of the tasks' input.

        agentlightning show runs/demo --where status=failed --where step=3
        agentlightning show runs/demo --rollout worst --full
    """
    wanted = read_filter(where or ())
    if rollout is None and not wanted.said and not full:
        with reading(run):
            asyncio.run(show_run(run))
    else:
        with reading(run):
            asyncio.run(show_rollouts(run, rollout, wanted, full=full))


def alerts(run: _Run) -> None:
    """List the warnings of a run, oldest first: what happened, to what, and what to do."""
    with reading(run):
        asyncio.run(list_alerts(run))


def plugins() -> None:
    """List the installed plugins, the hooks they implement, and those that could not be loaded."""
    loaded = load_plugins()
    table = Table(title="plugins")
    for column in ("name", "version", "hooks"):
        table.add_column(column)
    for name, version, hooks in loaded.list():
        table.add_row(name, version, ", ".join(hooks))
    console = Terminal()
    console.print(table)
    for name, problem in loaded.broken.items():
        console.print(Text.assemble(("broken", "red"), f" {name}: {problem}"), soft_wrap=True)


COLUMNS: Final = ("run", "status", "steps", "reward", "model", "disk", "script", "age")
WIDE: Final = 100
"""Characters of a terminal from which on the list of runs has room for scripts that differ."""
TRAINING: Final = " *"
"""Stands behind a reward of training."""


# what the verbs do ------------------------------------------------------------------------
async def list_runs(folder: Path, paths: Sequence[Path]) -> None:
    """One line for each run at these paths, the newest first."""
    console = Terminal()
    lines = [await read_line(path) for path in paths]
    if not lines:
        said = f"no runs in {str(folder)!r}; start one with: agentlightning train SCRIPT"
        console.print(said, markup=False)
        _say_evaluations(folder, console)
        return
    lines.sort(key=lambda line: line.created_at, reverse=True)
    columns = {name: [line.cells[place] for line in lines] for place, name in enumerate(COLUMNS)}
    same = {name: columns.pop(name)[0] for name in ("model", "script") if len(set(columns[name])) == 1}
    if console.width < WIDE:
        columns.pop("script", None)
    title = f"runs in {folder}" + "".join(f", {name} {value}" for name, value in same.items())
    console.print(Text(title, "table.title"), soft_wrap=True)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for name in columns:
        side: JustifyMethod = "right" if name in ("steps", "disk", "age") else "left"
        table.add_column(name, justify=side, no_wrap=name not in ("model", "script"), overflow="fold")
    for line, *cells in zip(lines, *columns.values(), strict=True):
        table.add_row(*map(Text, cells), style="red" if line.status in {*BROKEN, "unreadable"} else None)
    console.print(table)
    if any(line.reward.endswith(TRAINING) for line in lines):
        console.print(f"{TRAINING.strip()} training reward; the others are held-out, greedy")
    console.print(f"{gib(sum(line.disk for line in lines))} on disk; `agentlightning runs prune` frees some")
    _say_evaluations(folder, console)


def _say_evaluations(folder: Path, console: Console) -> None:
    """Say where the runs of `agentlightning evaluate` are: each evaluation has a folder of them."""
    found = sorted({path.parents[1] for path in folder.glob("*/*/run.json")}, key=lambda each: each.name)
    if found:
        folders = f"in {len(found)} folder{'s' * (len(found) > 1)}"
        said = f"more runs, such as those of evaluations, {folders}: agentlightning runs {found[-1]}"
        console.print(said, markup=False, highlight=False, soft_wrap=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLine:
    """One line of the list of runs."""

    name: str
    created_at: float
    status: str
    """See `insight.status`; "unreadable" if its store can't be read."""
    steps: int = 0
    reward: str = "-"
    """Reward by `insight.rewards.change`."""
    model: str = "-"
    disk: int = 0
    """Bytes below the run's folder."""
    script: str = "-"

    @property
    def cells(self) -> tuple[str, ...]:
        age, disk = describe_age(time.time() - self.created_at), gib(self.disk)
        return self.name, self.status, str(self.steps), self.reward, self.model, disk, self.script, age


async def read_line(path: Path) -> RunLine:
    """The line of a run; one whose store can't be read is "unreadable"."""
    begun = (path / "run.json").stat().st_mtime
    try:
        async with open_run(path) as (store, run_id):
            run, metrics = await store.find_run(run_id), await store.list_metrics(run_id)
            members, counts = await store.list_members(run_id), await store.count_rollouts(run_id)
            change = await find_change(store, run, metrics, counts) if run else None
    except (LightningError, OSError, ValueError):  # such as a server that is away
        return RunLine(name=path.name, created_at=begun, status="unreadable", disk=space.disk_bytes(path))
    if run is None:
        return RunLine(name=path.name, created_at=begun, status="not started")
    script = Path(str(run.provenance.get("script") or "-")).name
    return RunLine(
        name=path.name,
        created_at=run.created_at,
        status=state_of(run, members, RunFolder(path, resume=True).held),
        steps=len(metrics),
        reward=_reward(change),
        model=model_name(run) or "-",
        disk=space.disk_bytes(path),
        script=script,
    )


def _reward(change: Change | None) -> str:
    if change is None:
        return "-"
    if change.kind == "once":
        return say(change.last)
    return f"{say(change.first)} → {say(change.last)}" + TRAINING * (change.kind == "training")


def describe_age(seconds: float) -> str:
    """Seconds in the unit that a person would take."""
    for unit, size in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


async def show_run(path: Path) -> None:
    """Curve, success, rollouts and agents of one run, finished or not."""
    console = Terminal()
    async with open_run(path) as (store, run_id):
        run = await store.find_run(run_id)
        metrics = await store.list_metrics(run_id)
        newest = await find_begun(store, run_id, LISTED)
        counts = await store.count_rollouts(run_id)
        evidence = await find_evidence(store, run, metrics, counts)
        members = await store.list_members(run_id)
        alerts = await store.list_alerts(run_id)
        automatic = any(k.startswith("air/") and v for one in metrics for k, v in one.values.items())
        rules = await _rules(store, run_id) if automatic else []
        sample = await transcripts(store, run_id, len(metrics))
        summary = find_summary(path) if run and run.status == "finished" else None
        if summary is None and run is not None:
            summary = await summarise(store, run, path, evidence)
    status = state_of(run, members, RunFolder(path, resume=True).held)
    console.print(f"run {run_id}: {status}, {len(metrics)} steps", markup=False)
    if run and (why := run.config.get(ENDED)):
        console.print(Text(str(why), "red"), soft_wrap=True)
    console.print(verdict_lines(verdict(evidence)), soft_wrap=True)
    if summary is not None and (exported := exported_note(summary)):
        console.print(exported, markup=False, highlight=False, soft_wrap=True)
    if run and run.provenance:
        console.print(origin_lines(run.provenance), soft_wrap=True)
    if members:
        console.print(member_table(members))
    if len(phases := find_phases(run)) > 1:
        console.print(phase_line(phases, len(metrics)), highlight=False)
    console.print(terminal_curve(metrics), markup=False, highlight=False)
    for alert in alerts:
        console.print(alert_line(alert))
    if sample:
        console.print(sample)
    if rules:
        console.print(rule_table(rules))
    if summary is not None:
        show_summary(summary, console)
    if reasons := group_failures(evidence.failed):
        console.print(failure_lines(reasons, path), soft_wrap=True)
    if run is None or run.status != "finished":
        console.print("not finished: these are the figures so far")
    begun = sum(each.count for each in counts if each.status is not Status.QUEUED)
    show_newest(newest, begun, path, console)


def show_summary(summary: Summary, console: Console) -> None:
    """Prints a run's rewards, agents and left-out tasks."""
    if summary.held_out:
        console.print(held_out_table(summary.held_out))
    show_searches(summary, console)
    if not summary.agents:  # no step has trained
        return
    console.print(agent_table(summary))
    if summary.spent:
        console.print(spent_line(summary.spent), highlight=False)
    equal = f"{summary.zero_variance_groups} groups had equal rewards, so nothing to compare"
    console.print(f"{summary.rollouts} rollouts, {summary.failures} failed, {equal}")
    console.print(
        describe_staleness(summary.staleness_mean, summary.staleness_max)
        or "trained on-policy: by the version that sampled"
    )


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
    console = Terminal()
    async with open_run(path) as (store, run_id):
        alerts = await store.list_alerts(run_id)
    for alert in alerts:
        said = time.strftime("%Y-%m-%d %H:%M:%S  ", time.localtime(alert.created_at))
        console.print(Text(said, "dim") + alert_line(alert))
    if not alerts:
        console.print(f"no alerts in run {run_id}", markup=False)


def rule_table(lines: Sequence[RuleLine]) -> Table:
    """Returns a table of each AIR rule's rewards, and whether its signals have become fewer."""
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


# where a run's numbers come from -----------------------------------------------------------
def origin_lines(origin: Mapping[str, Any]) -> Text:
    """Script, commit, machine, versions and command line, a line each."""
    again = len(origin.get("resumed", []))
    times = f", resumed {again} time{'s' if again > 1 else ''}" if again else ""
    lines = {
        "script": f"{origin.get('script') or 'none'}{_commit(origin.get('git'))}",
        "command": shlex.join(origin.get("command", [])),
        "machine": _machine(origin.get("machine", {})),
        "versions": ", ".join(
            f"{n} {v}" for n, v in origin.get("versions", {}).items() if n in NAMED_VERSIONS
        ),
        "seed": f"{origin.get('seed')}{times}",
    }
    return Text("\n".join(f"  {name:<9} {said}" for name, said in lines.items()), "dim")


def _commit(git: Mapping[str, Any] | None) -> str:
    if git is None:
        return ""
    changed = ", with changes that are not committed" if git.get("dirty") else ""
    return f" at {str(git.get('commit'))[:10]} ({git.get('branch')}{changed})"


def _machine(machine: Mapping[str, Any]) -> str:
    devices = machine.get("accelerators") or []
    more = f", {len(devices)} x {devices[0]}" if devices else ""
    return f"{machine.get('host')}, {machine.get('cores')} cores, {machine.get('memory_gb')} GB{more}"
