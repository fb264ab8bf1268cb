"""Which rollouts a run holds: listed, chosen by a person's words, and shown one by one."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from pydantic import JsonValue
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, JustifyMethod
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from lightning_core.dialects import transcript
from lightning_core.errors import ConfigError, StoreError
from lightning_core.experience.returns import with_final
from lightning_core.insight.failures import find_refused, group_failures
from lightning_core.insight.trace import Item, Node, Trace, read_traces
from lightning_core.insight.verdict import say
from lightning_core.insight.why import Reason, reasons_of
from lightning_core.plugins import load_plugins
from lightning_core.records.types import Call, Reward, Rollout, Span, Status, ToolEvent, matches
from lightning_core.stores.base import Store
from lightning_core.texts.terminal import Terminal
from lightning_core.trainer.display import failure_lines
from lightning_core.trainer.folder import RunFolder, check_there
from lightning_core.trainer.parts import open_store
from lightning_core.trainer.report import model_name, task_name, task_text
from lightning_core.trainer.versions import in_folder

LISTED = 8
"""Rollouts that `show` lists."""
CHOSEN = 40
"""Rollouts that it lists if it is told which; all with --full."""
ENDS = ("best", "worst")
"""Words for a rollout by its reward."""
_NAMED = 5
_WORDS = 60
"""Characters shown of a prompt, a reply, arguments or a result."""
_BAD = "red"


@dataclass(frozen=True, slots=True)
class Filter:
    """The rollouts that a person wants to see; None: any."""

    task: str | None = None
    """Its id, or how its id or its text begins."""
    step: int | None = None
    """As it is shown: the first update is 1, an evaluation is after so many updates."""
    split: str | None = None
    agent: str | None = None
    """Name or glob of an agent that made a call in it."""
    status: Status | None = None
    inputs: tuple[tuple[str, str], ...] = ()
    """Names of fields of the task's own input, each with the value that it must have."""

    def __post_init__(self) -> None:
        if self.split not in (None, "train", "validation"):
            raise ConfigError(f"--where split={self.split}: give 'train' or 'validation'")

    @property
    def said(self) -> str:
        """The filter in words, for a title."""
        given = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "inputs"}
        given |= dict(self.inputs)
        return " ".join(f"{name}={value}" for name, value in given.items() if value is not None)


def read_filter(where: Sequence[str]) -> Filter:
    """The filter of `--where NAME=VALUE` options; another name is a field of the tasks' input. Raises
    ConfigError for a value that is none."""
    given: dict[str, Any] = {}
    known = {field.name for field in fields(Filter)} - {"inputs"}
    for each in where:
        name, separator, value = each.partition("=")
        if not separator or not name:
            raise ConfigError(
                f"--where {each!r}: give task, step, split, agent, status or a field of the tasks' input, "
                "such as step=3"
            )
        if name not in known:
            given["inputs"] = (*given.get("inputs", ()), (name, value))
            continue
        try:
            given[name] = {"step": int, "status": Status}.get(name, str)(value)
        except ValueError:
            kind = "a whole number" if name == "step" else f"one of {', '.join(Status)}"
            raise ConfigError(f"--where {each!r}: give {kind}") from None
    return Filter(**given)


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


async def find_rollouts(store: Store, run_id: str, newest: int | None = None) -> list[Rollout]:
    """The rollouts of a run, or the newest of them, each with the final reward that counts: a judge gives it
    afterwards."""
    rollouts = await store.find_rollouts(run_id, limit=newest, newest=newest is not None)
    rewards = await store.get_rewards([rollout.id for rollout in rollouts])
    return [with_final(rollout, rewards[rollout.id]) for rollout in rollouts]


async def show_rollouts(path: Path, which: str | None, wanted: Filter, *, full: bool = False) -> None:
    """The tree of one rollout; without `which` a list of those wanted, the newest last."""
    console = Terminal()
    async with open_run(path) as (store, run_id):
        rollouts = await _only(store, await find_rollouts(store, run_id), wanted)
        if which is None:
            listed = rollouts if full else rollouts[-CHOSEN:]
            title = f"{_count(listed, rollouts)}: {wanted.said or 'all'}"
            console.print(_listed(title, listed, full=full))
            if failures := group_failures(listed):
                console.print(failure_lines(failures, path), soft_wrap=True)
            return
        credited = await _credited(store, rollouts) if which in ENDS else ()
        (trace,) = await read_traces(store, [choose(rollouts, which, credited)])
        reasons, problem = await reasons_of(store, trace.rollout) if full else ({}, None)
        run = await store.find_run(run_id)
        policy = None if run is None else model_name(run)
    console.print(rollout_tree(trace, reasons, policy, full=full))
    if problem is not None:
        console.print(Text(f"why: {problem}", "yellow"))


def _count(listed: Sequence[Rollout], rollouts: Sequence[Rollout]) -> str:
    if len(listed) == len(rollouts):
        return f"{len(rollouts)} rollout{'s' * (len(rollouts) != 1)}"
    return f"the newest {len(listed)} of {len(rollouts)} rollouts (all with --full)"


async def _only(store: Store, rollouts: Sequence[Rollout], wanted: Filter) -> list[Rollout]:
    """Returns the wanted rollouts. ConfigError if there are none, or if no task has a field that is named."""
    for name, _ in wanted.inputs:
        if not any(name in rollout.task.input for rollout in rollouts):
            there = ", ".join(sorted({name for rollout in rollouts for name in rollout.task.input}))
            raise ConfigError(
                f"--where {name}=...: it is none of task, step, split, agent and status, and no task has a "
                f"field {name!r}; the tasks have {there or 'no fields'}"
            )
    chosen = [
        rollout
        for rollout in of_task(rollouts, wanted.task)
        if wanted.step in (None, rollout.step_number)
        and wanted.split in (None, rollout.split)
        and wanted.status in (None, rollout.status)
        and all(_written(rollout.task.input.get(name)) == value for name, value in wanted.inputs)
    ]
    if wanted.agent is not None:
        calls = await store.get_calls([rollout.id for rollout in chosen])
        seen = sorted({call.agent for part in calls.values() for call in part})
        names = {name for name in seen if matches(name, (wanted.agent,))}
        chosen = [each for each in chosen if any(call.agent in names for call in calls[each.id])]
        if not names:
            raise ConfigError(
                f"no call of {wanted.agent!r} in these rollouts; agents seen: {', '.join(seen)}"
            )
    if not chosen:
        raise ConfigError(f"none of the {len(rollouts)} rollouts fits {wanted.said}; leave a --where out")
    return chosen


def _written(value: JsonValue) -> str:
    """A field of a task as a person writes it on a command line."""
    return value if isinstance(value, str) else json.dumps(value)


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


def of_task(rollouts: Sequence[Rollout], task: str | None) -> list[Rollout]:
    """Returns the rollouts of the task whose id, or the start of whose id or text, is given; None means all.
    ConfigError if there are none, or several tasks."""
    if not rollouts:
        raise ConfigError("the run has no rollouts yet")
    if task is None:
        return list(rollouts)
    texts = {rollout.task.id: task_text(rollout.task) for rollout in rollouts}
    meant = [name for name, text in texts.items() if task and text.startswith(task)]
    chosen = meant[0] if len(meant) == 1 else _find(task, sorted(texts), "task")
    return [rollout for rollout in rollouts if rollout.task.id == chosen]


async def _credited(store: Store, rollouts: Sequence[Rollout]) -> set[str]:
    """The ids of those in which a call has an advantage."""
    found = await store.get_credited([each.id for each in rollouts if each.split == "train"])
    return {name for name, given in found.items() if any(one.advantage for one in given)}


def choose(rollouts: Sequence[Rollout], which: str, credited: Collection[str] = ()) -> Rollout:
    """The rollout that is meant by its id, by how the id begins or ends, or by "best", "worst" or "failed".

    Best and worst are among the `credited`, if there are any: they have an advantage to explain. Else they
    are among those of training.
    Of equal rewards, and of those that failed, the newest counts. Raises ConfigError if it is none of them,
    or several.
    """
    if which == "failed":
        if failed := [rollout for rollout in rollouts if rollout.status is Status.FAILED]:
            return failed[-1]
        raise ConfigError(f"none of these {len(rollouts)} rollouts has failed; give an id, 'best' or 'worst'")
    if which in ENDS:
        rewarded = [rollout for rollout in reversed(rollouts) if rollout.reward is not None]
        if not rewarded:
            raise ConfigError(f"no rollout has a reward yet, so none is the {which}; give an id")
        taught = [rollout for rollout in rewarded if rollout.id in credited]
        trained = taught or [rollout for rollout in rewarded if rollout.split == "train"]
        return (max if which == "best" else min)(
            trained or rewarded, key=lambda rollout: rollout.reward or 0.0
        )
    by_id = {rollout.id: rollout for rollout in rollouts}
    return by_id[_find(which, list(by_id), "rollout", "'best', 'worst', 'failed' or an id")]


def _find(given: str, ids: Sequence[str], kind: str, wanted: str = "an id") -> str:
    """The id that is given, or that alone begins or ends so. Raises ConfigError, which says what is
    `wanted`."""
    if given in ids:
        return given
    found = [one for one in ids if given and (one.startswith(given) or one.endswith(given))]
    if len(found) == 1:
        return found[0]
    known = found or ids
    named = ", ".join(repr(one) for one in known[-_NAMED:])
    more = f" and {len(known) - _NAMED} more" if len(known) > _NAMED else ""
    if found:
        raise ConfigError(f"{given!r} fits several {kind}s: {named}{more}; give the whole id")
    raise ConfigError(
        f"no {kind} has the id {given!r}, or one that begins or ends so; give {wanted}: {named}{more}"
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
    trace: Trace, reasons: Mapping[str, Sequence[Reason]], policy: str | None = None, *, full: bool = False
) -> Tree:
    """One line for each record, under what it belongs to; with `full` all of every text. Under a call stands
    why it has its advantage, as `reasons` has it by call id. `policy`: the model under training."""
    top = Tree(_rollout(trace.rollout))
    if refused := find_refused(node.item for node, _ in trace.walk() if isinstance(node.item, Call)):
        top.add(Text(refused.text, _BAD))
    branches: dict[int, Tree] = {}
    for node, parent in trace.walk():
        below = top if parent is None else branches[id(parent)]
        branches[id(node)] = branch = below.add(_line(node, full, policy))
        for reason in reasons.get(node.item.id, ()) if isinstance(node.item, Call) else ():
            branch.add(Text("\n".join(reason.lines()), "cyan"))
    return top


def _line(node: Node, full: bool, policy: str | None) -> Text:
    item: Item = node.item
    match item:
        case Call():
            return _call(item, full, policy)
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


def _call(call: Call, full: bool, policy: str | None) -> Text:
    line = Text.assemble((call.agent, "bold cyan"), f"  {_tokens(call)}{_seconds(call)}")
    if full and call.endpoint is None and call.policy_version is not None:
        line.append(f"  {transcript.answerer(call, policy)}, {transcript.version(call)}", "dim")
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
