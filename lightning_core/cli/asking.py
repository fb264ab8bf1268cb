"""`agentlightning try`, `why`, `whatif` and `report`: one rollout before training, and questions after it."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any, Final, get_args

import typer
from rich.box import SIMPLE_HEAD
from rich.console import JustifyMethod
from rich.table import Table
from rich.text import Text

from lightning_core.cli.choosing import choose
from lightning_core.cli.rollouts import open_run, reading, rollout_tree
from lightning_core.cli.serving import say
from lightning_core.cli.training import SET, call_once, read_launch
from lightning_core.credit.base import Baseline, Scale
from lightning_core.errors import ConfigError, TrainingError, UnknownAgentError
from lightning_core.insight.advice import nothing_earned
from lightning_core.insight.trace import read_traces
from lightning_core.insight.verdict import say as number
from lightning_core.insight.why import Other, Step, WhatIf, read_why, reasons_of, what_if
from lightning_core.plugins import load_plugins
from lightning_core.stores.versions import policies_of
from lightning_core.texts.terminal import Terminal
from lightning_core.trainer.loop import AgentNames
from lightning_core.trainer.parts import make_credit
from lightning_core.trainer.report import model_name
from lightning_core.trainer.settings import TINY
from lightning_core.trainer.trainer import Trainer

MOVED: Final = 20
"""Calls that `whatif` lists."""
_Run = Annotated[Path, typer.Argument(help="Folder of a run, such as runs/20260101-120000.")]


def try_script(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(help="A Python script that calls Trainer(...).fit(...).")],
    tasks: Annotated[int, typer.Option(min=1, help="How many tasks to try.")] = 1,
    given: Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help=SET)] = None,
    full: Annotated[bool, typer.Option("--full", help="Shorten no text.")] = False,
) -> None:
    """Run your app on a task or two with the model as it is, and show calls, replies and rewards.

    Each task is tried twice: sampled, as in training, and greedy. Nothing is trained, and nothing is kept.
    Do this before you train: it shows whether your agents are recorded under the names you expect, whether
    the reward is right, and whether the model ever succeeds.

        agentlightning try train.py
        agentlightning try train.py --tasks 3 --set model=Qwen/Qwen3-0.6B
    """
    launch = read_launch(given or (), {})
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "try"
        tried: list[Trainer] = []

        def once(
            trainer: Trainer, solve: Any, *, train: Iterable[Any] = (), validation: Iterable[Any] = ()
        ) -> None:
            first = list(islice(chain(train, validation), tasks))
            if not first:
                raise ConfigError("there is no task to try: give fit() at least one")
            shown = replace(trainer, steps=0, folder=folder, store=None, resume=False, progress=False)
            Trainer.fit(shown, solve, validation=first)
            tried.append(shown)

        call_once(script, context.args, launch, once)
        asyncio.run(_show_all(folder, AgentNames(tried[0].patterns), full))
    say("nothing was trained or kept; next: agentlightning train " + str(script))


async def _show_all(folder: Path, names: AgentNames, full: bool) -> None:
    """Every rollout of the run as a tree, what to try where none earned anything, and agents that made no
    call."""
    console = Terminal()
    async with open_run(folder) as (store, run_id):
        rollouts = await store.find_rollouts(run_id)
        traces = await read_traces(store, rollouts)
        calls = await store.get_calls([one.id for one in rollouts])
        run = await store.find_run(run_id)
    for trace in traces:
        console.print(rollout_tree(trace, {}, full=full))
    policies = [] if run is None else [None, *policies_of(run).values()]
    tiny = [policy for policy in policies if run is not None and model_name(run, policy) == TINY]
    if (advice := nothing_earned(rollouts, calls, tiny=tiny)) is not None:
        console.print(advice, markup=False, highlight=False, soft_wrap=True)
    names.see(calls, trained=False)
    try:
        names.check(last=True)
    except (UnknownAgentError, TrainingError) as error:
        console.print(Text(f"training would end: {error}", "red"), soft_wrap=True)


def why(
    run: _Run,
    rollout: Annotated[
        str, typer.Argument(help="Its id, how the id begins or ends; or 'best', 'worst', 'failed'.")
    ] = "worst",
) -> None:
    """Say why the calls of a trained rollout got their advantages: one sentence each, then the terms.

    agentlightning why runs/demo
    agentlightning why runs/demo best
    """
    with reading(run):
        asyncio.run(_show_why(run, rollout))


async def _show_why(path: Path, which: str) -> None:
    async with open_run(path) as (store, run_id):
        (trace,) = await read_traces(store, [await choose(store, run_id, which)])
        reasons, problem = await reasons_of(store, trace.rollout)
    console = Terminal()
    console.print(rollout_tree(trace, reasons))
    if problem is not None:
        console.print(Text(f"why: {problem}", "yellow"))


def whatif(
    run: _Run,
    step: Annotated[int, typer.Option(min=1, help="The update, as `show` counts: the first is 1.")] = 1,
    credit: Annotated[str | None, typer.Option(help="Another credit method, such as uniform.")] = None,
    baseline: Annotated[str | None, typer.Option(help=f"{', '.join(get_args(Baseline))}.")] = None,
    scale: Annotated[str | None, typer.Option(help=f"{', '.join(get_args(Scale))}.")] = None,
    without_air: Annotated[bool, typer.Option("--without-air", help="Leave out automatic rewards.")] = False,
) -> None:
    """Credit a step again in another way, and list the calls whose advantage moves most.

    It changes nothing in the run, and can't know what later weights would have been.

        agentlightning whatif runs/demo --step 3 --credit uniform
    """
    for name, value, known in (("baseline", baseline, Baseline), ("scale", scale, Scale)):
        if value is not None and value not in get_args(known):
            raise ConfigError(f"--{name} {value!r} is none of {', '.join(get_args(known))}")
    other = Other(
        credit=make_credit(credit, load_plugins()) if credit else None,
        baseline=baseline,  # type: ignore[arg-type]
        scale=scale,  # type: ignore[arg-type]
        without_air=without_air,
    )
    if other == Other():
        raise ConfigError("nothing is to be different: give --credit, --baseline, --scale or --without-air")
    with reading(run):
        asyncio.run(_show_what_if(run, step, other))


async def _show_what_if(path: Path, step: int, other: Other) -> None:
    async with open_run(path) as (store, run_id):
        recorded, method, _ = await read_why(store, run_id, step - 1)
    made = what_if(recorded, method, other)
    console = Terminal()
    console.print(_moves(made, recorded))
    console.print(f"{made.conclusion} {made.note}", soft_wrap=True, markup=False, highlight=False)


def _moves(made: WhatIf, step: Step) -> Table:
    """The replies that move most, with the advantage that they got and would have got."""
    table = Table(title="advantages, as they were and would be", box=SIMPLE_HEAD)
    for column in ("rollout", "agent", "reply", "was", "would be"):
        side: JustifyMethod = "right" if column in ("was", "would be") else "left"
        table.add_column(column, justify=side, no_wrap=column != "reply", overflow="ellipsis")
    for change in made.moved[:MOVED]:
        values = ("none" if one is None else number(one) for one in (change.before, change.after))
        reply = Text(" ".join(step.reply(change.key).split()), no_wrap=True, overflow="ellipsis")
        table.add_row(Text(change.key[0]), Text(change.agent), reply, *map(Text, values))
    return table


def report(run: _Run) -> None:
    """Write the console's pages of a run as one file, report.html, into its folder: to send on or to keep.

    agentlightning report runs/demo
    """
    from lightning_core.console.saving import write_report

    with reading(run):
        written = write_report(run, load_plugins())
    say(f"wrote {written}")
