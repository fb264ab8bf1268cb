"""Which rollouts a run holds: listed, chosen by a person's words, and shown one by one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from lightning_core import transcript
from lightning_core.errors import ConfigError
from lightning_core.linking import with_final
from lightning_core.plugins import load_plugins
from lightning_core.stores.base import Store
from lightning_core.trace import Item, Node, Trace, read_traces
from lightning_core.trainer.folder import RunFolder
from lightning_core.trainer.parts import open_store
from lightning_core.types import Call, Reward, Rollout, Span, ToolEvent

LISTED = 8
"""Rollouts that `show` lists."""
_NAMED = 5
ROLLOUT = "A rollout: its id, how the id begins or ends, 'best' or 'worst'"
"""What the verbs say of a rollout as an option."""
_WORDS = 60
"""Characters shown of a prompt, a reply, arguments or a result."""
_BAD = "red"


@asynccontextmanager
async def open_run(path: Path) -> AsyncIterator[tuple[Store, str]]:
    """The store of a run, and the run's id in it. Raises ConfigError for what is not a run's folder."""
    folder = RunFolder(path, resume=True)
    address = folder.read_address()
    if address is None:
        raise ConfigError(f"{str(path)!r} is not a run's folder; `agentlightning runs` lists the runs")
    async with open_store(address["store"] or folder.store_url, load_plugins()) as store:
        yield store, address["run"]


async def find_rollouts(store: Store, run_id: str, newest: int | None = None) -> list[Rollout]:
    """The rollouts of a run, or the newest of them, each with the final reward that counts: a judge gives it
    afterwards."""
    rollouts = await store.find_rollouts(run_id, limit=newest, newest=newest is not None)
    rewards = await store.get_rewards([rollout.id for rollout in rollouts])
    return [with_final(rollout, rewards[rollout.id]) for rollout in rollouts]


async def show_rollouts(path: Path, which: str | None, task: str | None) -> None:
    """The tree of one rollout; without `which` a list of the task's rollouts."""
    console = Console()
    async with open_run(path) as (store, run_id):
        rollouts = of_task(await find_rollouts(store, run_id), task)
        if which is None:
            console.print(_table(f"rollouts of task {rollouts[0].task.id}", rollouts))
            return
        (trace,) = await read_traces(store, [choose(rollouts, which)])
    console.print(rollout_tree(trace))


def show_newest(newest: Sequence[Rollout], total: int, path: Path, console: Console) -> None:
    """The newest rollouts, of so many, and how to look at one."""
    if not newest:
        return
    console.print(_table(f"rollouts: the newest {len(newest)} of {total}", newest))
    console.print(
        f"one of them: agentlightning show {path} --rollout ID (or best, or worst)",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def of_task(rollouts: Sequence[Rollout], task: str | None) -> list[Rollout]:
    """Those of the task whose id is or begins with `task`; None means all. ConfigError if there are none."""
    if not rollouts:
        raise ConfigError("the run has no rollouts yet")
    ids = sorted({rollout.task.id for rollout in rollouts})
    chosen = None if task is None else _find(task, ids, "task")
    return [rollout for rollout in rollouts if chosen is None or rollout.task.id == chosen]


def choose(rollouts: Sequence[Rollout], which: str) -> Rollout:
    """The rollout that is meant by its id, by how the id begins or ends, or by "best" or "worst".

    Of equal rewards the newest counts. Raises ConfigError if it is none of them, or several.
    """
    if which in ("best", "worst"):
        rewarded = [rollout for rollout in reversed(rollouts) if rollout.reward is not None]
        if not rewarded:
            raise ConfigError(f"no rollout has a reward yet, so none is the {which}; give an id")
        return (max if which == "best" else min)(rewarded, key=lambda rollout: rollout.reward or 0.0)
    by_id = {rollout.id: rollout for rollout in rollouts}
    return by_id[_find(which, list(by_id), "rollout")]


def _find(given: str, ids: Sequence[str], kind: str) -> str:
    if given in ids:
        return given
    found = [one for one in ids if given and (one.startswith(given) or one.endswith(given))]
    if len(found) == 1:
        return found[0]
    known = found or ids
    named = ", ".join(repr(one) for one in known[-_NAMED:])
    more = f" and {len(known) - _NAMED} more" if len(known) > _NAMED else ""
    problem = "fits several" if found else "fits none"
    raise ConfigError(f"{kind} {given!r} {problem}: {named}{more}; give the whole id")


def _table(title: str, rollouts: Sequence[Rollout]) -> Table:
    table = Table(title=Text(title, "table.title"))
    for column in ("rollout", "task", "split", "step", "attempts", "status", "reward"):
        table.add_column(column, justify="right" if column in ("step", "attempts", "reward") else "left")
    for rollout in rollouts:
        table.add_row(
            Text(rollout.id),  # not markup: "gsm8k[test]/12" is a task as well
            Text(rollout.task.id),
            rollout.split,
            str(rollout.step),
            str(rollout.attempts),
            rollout.status,
            "-" if rollout.reward is None else f"{rollout.reward:.3f}",
        )
    return table


# one rollout as a tree ---------------------------------------------------------------------
def rollout_tree(trace: Trace) -> Tree:
    """One line for each record, under what it belongs to."""
    top = Tree(_rollout(trace.rollout))
    branches: dict[int, Tree] = {}
    for node, parent in trace.walk():
        below = top if parent is None else branches[id(parent)]
        branches[id(node)] = below.add(_line(node))
    return top


def _line(node: Node) -> Text:
    item: Item = node.item
    match item:
        case Call():
            return _call(item)
        case ToolEvent():
            return _tool(item)
        case Span():
            return _span(item)
        case Reward():
            return _reward(item)


def _rollout(rollout: Rollout) -> Text:
    reward = "" if rollout.reward is None else f", reward {rollout.reward:+.3f}"
    line = Text.assemble(
        (f"rollout {rollout.id}", "bold"),
        f"  task {rollout.task.id}, {rollout.split}, step {rollout.step}, "
        f"attempt {rollout.attempts} of {rollout.max_attempts}: {rollout.status}{reward}",
    )
    return line.append(f"\n{rollout.error}", _BAD) if rollout.error else line


def _call(call: Call) -> Text:
    line = Text.assemble((call.agent, "bold cyan"), f"  {_tokens(call)}{_seconds(call)}")
    if call.endpoint is not None:
        line.append(f"  seen only, answered by {call.endpoint}", "yellow")
    elif not call.trained:
        line.append("  not trained", "dim")
    if call.status != "completed":
        line.append(f"  {call.status}: {_short(call.error or '')}", _BAD)
    line.append(f"\n{_short(transcript.text(transcript.prompt(call)[-1:]))}", "dim")
    return line.append(f" → {_short(transcript.text(transcript.replies(call)))}")


def _tokens(call: Call) -> str:
    read, written = transcript.tokens_read(call), transcript.tokens_written(call)
    return "" if read is None and written is None else f"{read or 0} → {written or 0} tokens, "


def _tool(event: ToolEvent) -> Text:
    line = Text.assemble((event.name, "magenta"), f"({_short(event.arguments)})  {_seconds(event)}")
    if event.error is not None:
        return line.append(f"  {event.error_type or 'failed'}: {_short(event.error)}", _BAD)
    return line.append(f" → {_short(event.result or '')}")


def _span(span: Span) -> Text:
    agent = f", agent {span.agent}" if span.agent else ""
    line = Text(f"span {span.name}{agent}  {_seconds(span)}", "blue")
    return line if span.error is None else line.append(f"  failed: {_short(span.error)}", _BAD)


def _reward(reward: Reward) -> Text:
    line = Text(f"{reward.kind} reward {reward.value:+.3f}", "green" if reward.value > 0 else "yellow")
    if reward.agent is not None and reward.kind == "final":  # an intermediate one lies under its call
        line.append(f" of {reward.agent}", "bold cyan")
    line.append(f"  by {reward.source}", "dim")
    return line.append(f": {_short(reward.reason)}") if reward.reason else line


def _seconds(item: Call | ToolEvent | Span) -> str:
    return f"{item.ended_at - item.started_at:.2f} s"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _WORDS else line[: _WORDS - 1] + "…"
