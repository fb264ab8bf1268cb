"""Which rollouts a run holds: listed, chosen by a person's words, and shown one by one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, JustifyMethod
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from lightning_core.cli.choosing import Filter, choose, find_wanted
from lightning_core.dialects import transcript
from lightning_core.errors import ConfigError, StoreError
from lightning_core.insight.failures import find_refused, group_failures
from lightning_core.insight.trace import Item, Node, Trace, read_traces
from lightning_core.insight.verdict import say
from lightning_core.insight.why import Reason, reasons_of
from lightning_core.plugins import load_plugins
from lightning_core.records.types import Call, Reward, Rollout, Run, Span, Status, ToolEvent
from lightning_core.stores.base import Store
from lightning_core.texts.terminal import Terminal
from lightning_core.trainer.display import failure_lines
from lightning_core.trainer.folder import RunFolder, check_there
from lightning_core.trainer.parts import open_store
from lightning_core.trainer.report import model_name, task_name
from lightning_core.trainer.versions import in_folder

LISTED = 8
"""Rollouts that `show` lists."""
CHOSEN = 40
"""Rollouts that it lists if it is told which; all with --full."""
_WORDS = 60
"""Characters shown of a prompt, a reply, arguments or a result."""
_BAD = "red"


@contextmanager
def reading(run: Path | str) -> Iterator[None]:
    """While a run's records are read and printed: raises StoreError, which names the run, where a value is
    not of the type that training writes."""
    try:
        yield
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        said = " ".join(str(error).split())
        raise StoreError(
            f"the records of run {str(run)!r} can't be shown: a value is not of the type that training "
            f"writes ({type(error).__name__}: {said[:300]}). Put a copy of its store in place, "
            "or remove the run: agentlightning runs rm"
        ) from error


@asynccontextmanager
async def open_run(path: Path) -> AsyncIterator[tuple[Store, str]]:
    """The store of a run, and the run's id in it; its weights are found where the folder is now. Raises
    ConfigError for what is not a run's folder."""
    found = RunFolder(path, resume=True).find_run()
    if found is None:
        raise ConfigError(f"{str(path)!r} is not a run's folder; `agentlightning runs` lists the runs")
    check_there(found[0])
    async with open_store(found[0], load_plugins()) as store:
        yield in_folder(store, path), found[1]


async def find_begun(store: Store, run_id: str, newest: int) -> list[Rollout]:
    """The newest rollouts that a worker has begun."""
    begun = [status for status in Status if status is not Status.QUEUED]
    found = [await store.find_rollouts(run_id, status=status, limit=newest, newest=True) for status in begun]
    played = [rollout for some in found for rollout in some if rollout.attempts]
    return sorted(played, key=lambda rollout: rollout.created_at)[-newest:]


async def show_rollouts(path: Path, which: str | None, wanted: Filter, *, full: bool = False) -> None:
    """The tree of one rollout; without `which` a list of those wanted, the newest last."""
    console = Terminal()
    async with open_run(path) as (store, run_id):
        if which is None:
            listed, more = await find_wanted(store, run_id, wanted, None if full else CHOSEN)
            said = f"the newest {len(listed)} rollouts (all with --full)" if more else _count(len(listed))
            console.print(_listed(f"{said}: {wanted.said or 'all'}", listed, full=full))
            if failures := group_failures(listed):
                console.print(failure_lines(failures, path), soft_wrap=True)
            return
        (trace,) = await read_traces(store, [await choose(store, run_id, which, wanted)])
        reasons, problem = await reasons_of(store, trace.rollout) if full else ({}, None)
        run = await store.find_run(run_id)
    console.print(rollout_tree(trace, reasons, run, full=full))
    if problem is not None:
        console.print(Text(f"why: {problem}", "yellow"))


def _count(rollouts: int) -> str:
    return f"{rollouts} rollout{'s' * (rollouts != 1)}"


def show_newest(newest: Sequence[Rollout], total: int, path: Path, console: Console) -> None:
    """The newest rollouts, of so many, and how to look at one."""
    if not newest:
        return
    console.print(_listed(f"rollouts: the newest {len(newest)} of {total}", newest))
    console.print(
        f"one of them: agentlightning show {path} --rollout ID (or best, worst, failed)",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def _listed(title: str, rollouts: Sequence[Rollout], *, full: bool = False) -> Group:
    """One line each, unless `full`: ids are whole at any width, the task is cut to what is left.

    A task without an id of its own is known by its text. A column whose cells are all equal stands in the
    title instead.
    """
    cells: dict[str, list[str]] = {
        "split": [str(rollout.split) for rollout in rollouts],
        "step": [str(rollout.step_number) for rollout in rollouts],
        "status": [str(rollout.status) for rollout in rollouts],
    }
    same = {name: values[0] for name, values in cells.items() if len(set(values)) == 1}
    title += "".join(f", {name} {value}" for name, value in same.items() if f"{name}={value}" not in title)
    table = Table(box=SIMPLE_HEAD)
    shown = [name for name in cells if name not in same]
    for column in ("rollout", "reward", *shown, "task"):
        side: JustifyMethod = "right" if column in ("step", "reward") else "left"
        table.add_column(column, justify=side, no_wrap=column != "task")
    for place, rollout in enumerate(rollouts):
        table.add_row(
            Text(rollout.id),  # not markup: "gsm8k[test]/12" is a task as well
            "-" if rollout.reward is None else say(rollout.reward),
            *(Text(cells[name][place], _BAD if cells[name][place] == "failed" else "") for name in shown),
            _cell(task_name(rollout.task), full),
        )
    return Group(Text(title, "table.title"), table)


def _cell(text: str, full: bool) -> Text:
    return Text(text) if full else Text(" ".join(text.split()), no_wrap=True, overflow="ellipsis")


# one rollout as a tree ---------------------------------------------------------------------
def rollout_tree(
    trace: Trace, reasons: Mapping[str, Sequence[Reason]], run: Run | None = None, *, full: bool = False
) -> Tree:
    """One line for each record, under what it belongs to; with `full` all of every text. Under a call stands
    why it has its advantage, as `reasons` has it by call id. `run`: says which models answered."""
    top = Tree(_rollout(trace.rollout))
    if refused := find_refused(node.item for node, _ in trace.walk() if isinstance(node.item, Call)):
        top.add(Text(refused.text, _BAD))
    branches: dict[int, Tree] = {}
    for node, parent in trace.walk():
        below = top if parent is None else branches[id(parent)]
        branches[id(node)] = branch = below.add(_line(node, full, run))
        for reason in reasons.get(node.item.id, ()) if isinstance(node.item, Call) else ():
            branch.add(Text("\n".join(reason.lines()), "cyan"))
    return top


def _line(node: Node, full: bool, run: Run | None) -> Text:
    item: Item = node.item
    match item:
        case Call():
            return _call(item, full, run)
        case ToolEvent():
            return _tool(item, full)
        case Span():
            return _span(item, full)
        case Reward():
            return _reward(item, full)


def _rollout(rollout: Rollout) -> Text:
    reward = "" if rollout.reward is None else f", reward {rollout.reward:+.3f}"
    line = Text.assemble(
        (f"rollout {rollout.id}", "bold"),
        f"  task {_short(task_name(rollout.task), False)}, {_place(rollout)}: {rollout.status}{reward}",
    )
    return line.append(f"\n{rollout.error}", _BAD) if rollout.error else line


def _place(rollout: Rollout) -> str:
    """Which step or evaluation asked for it, and which attempt it is after a retry."""
    place = f"train, step {rollout.step_number}"
    if rollout.split == "validation":
        how = "greedy" if rollout.sampling.temperature == 0 else "sampled"
        made = rollout.step_number
        place = f"{how}, after {made} update{'s' * (made != 1)}"
    retried = rollout.attempts > 1
    return place + f", attempt {rollout.attempts} of {rollout.max_attempts}" * retried


def _call(call: Call, full: bool, run: Run | None) -> Text:
    line = Text.assemble((call.agent, "bold cyan"), f"  {_tokens(call)}{_seconds(call)}")
    if full and call.endpoint is None and call.policy_version is not None:
        model = None if run is None else model_name(run, call.policy)
        line.append(f"  {transcript.answerer(call, model)}, {transcript.version(call)}", "dim")
    if call.endpoint is not None:
        line.append(f"  seen only, answered by {call.endpoint}", "yellow")
    elif not call.trained:
        line.append("  not trained", "dim")
    elif why := next((each.left_out for each in call.choices if each.left_out), None):
        line.append(f"  left out of training: {_short(why, full)}", "yellow")
    if call.status != "completed":
        line.append(f"  {call.status}: {_short(call.error or '', full)}", _BAD)
    if given := next((each.as_text for each in call.choices if each.as_text), None):
        line.append(f"  given as text: {_short(' '.join(given), full)}", "yellow")
    if hosted := transcript.not_offered(call):
        line.append(f"  hosted, not offered: {', '.join(hosted)}", "yellow")
    line.append(f"\n{_short(transcript.text(transcript.prompt(call)[-1:]), full)}", "dim")
    return line.append(f" → {_short(transcript.text(transcript.replies(call)), full)}")


def _tokens(call: Call) -> str:
    read, written = transcript.tokens_read(call), transcript.tokens_written(call)
    return "" if read is None and written is None else f"{read or 0} → {written or 0} tokens, "


def _tool(event: ToolEvent, full: bool) -> Text:
    line = Text.assemble((event.name, "magenta"), f"({_short(event.arguments, full)})  {_seconds(event)}")
    if event.error is not None:
        return line.append(f"  {event.error_type or 'failed'}: {_short(event.error, full)}", _BAD)
    return line.append(f" → {_short(event.result or '', full)}")


def _span(span: Span, full: bool) -> Text:
    agent = f", agent {span.agent}" if span.agent else ""
    line = Text(f"span {span.name}{agent}  {_seconds(span)}", "blue")
    return line if span.error is None else line.append(f"  failed: {_short(span.error, full)}", _BAD)


def _reward(reward: Reward, full: bool) -> Text:
    line = Text(f"{reward.kind} reward {reward.value:+.3f}", "green" if reward.value > 0 else "yellow")
    if reward.agent is not None and reward.kind == "final":  # an intermediate one lies under its call
        line.append(f" of {reward.agent}", "bold cyan")
    line.append(f"  by {reward.source}", "dim")
    return line.append(f": {_short(reward.reason, full)}") if reward.reason else line


def _seconds(item: Call | ToolEvent | Span) -> str:
    return f"{item.ended_at - item.started_at:.2f} s"


def _short(text: str, full: bool) -> str:
    if full:
        return text.strip()
    line = " ".join(text.split())
    return line if len(line) <= _WORDS else line[: _WORDS - 1] + "…"
