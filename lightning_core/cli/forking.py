"""`agentlightning fork`: a recorded rollout run again up to a call, with other replies from there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import JustifyMethod
from rich.table import Table
from rich.text import Text

from lightning_core.cli.choosing import choose
from lightning_core.cli.rollouts import open_run, reading
from lightning_core.cli.serving import say
from lightning_core.cli.training import SET, call_once, read_launch
from lightning_core.dialects import transcript
from lightning_core.errors import ConfigError
from lightning_core.insight.counterfactual import ForkResult, ReplyValue, reply_value
from lightning_core.insight.verdict import say as number
from lightning_core.plugins import load_plugins
from lightning_core.records.types import Call, Rollout
from lightning_core.stores.base import get_run
from lightning_core.texts.terminal import Terminal
from lightning_core.trainer.forking import check_forkable, forkable, run_forks
from lightning_core.trainer.trainer import Trainer


def fork(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(help="The script that the run was begun with.")],
    run: Annotated[Path, typer.Argument(help="Folder of the run.")],
    call: Annotated[
        list[str] | None,
        typer.Option(
            help="A call's number in its rollout, from 1, or its id (default: all of trained agents)."
        ),
    ] = None,
    rollout: Annotated[
        str, typer.Option(help="Its id, how the id begins or ends; or 'best', 'worst', 'failed'.")
    ] = "worst",
    samples: Annotated[int, typer.Option(min=1, help="Other replies of each call.")] = 8,
    given: Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help=SET)] = None,
) -> None:
    """Go back to a call of a recorded rollout, sample other replies, and compare the rewards.

    Your app runs again for each sample. Calls before the fork get the recorded replies. All others are
    sampled by the version of the weights that answered then. An app whose prompts depend on time, chance or
    the network is refused, with the first difference. Nothing is trained.

        agentlightning fork train.py runs/demo --rollout best --call 3 --samples 8
    """

    def once(trainer: Trainer, solve: Any, **tasks: Iterable[Any]) -> None:
        with reading(run):
            asyncio.run(_fork(trainer, solve, run, rollout, call or (), samples))

    call_once(script, context.args, read_launch(given or (), {}), once)


async def _fork(
    trainer: Trainer, solve: Any, path: Path, which: str, wanted: Sequence[str], samples: int
) -> None:
    async with open_run(path) as (store, run_id):
        run = await get_run(store, run_id)
        recorded = await choose(store, run_id, which)
        check_forkable(run, recorded, solve)
        calls = forkable((await store.get_calls([recorded.id]))[recorded.id])
        chosen = _chosen(calls, wanted, recorded)
        say(
            f"{len(chosen) * samples} rollouts fork from {recorded.id}, {samples} at each of "
            f"{len(chosen)} calls"
        )
        ended = await run_forks(
            *(store, run, recorded, chosen, samples),
            settings=trainer,
            solve=solve,
            plugins=load_plugins(),
        )
    _show(recorded, calls, ended)


def _chosen(calls: Sequence[Call], wanted: Sequence[str], rollout: Rollout) -> list[Call]:
    """The calls that are meant; without `wanted` those of trained agents. Raises ConfigError."""
    if not wanted:
        trained = [call for call in calls if call.trained and call.status == "completed"]
        if not trained:
            raise ConfigError(f"rollout {rollout.id!r} has no completed call of a trained agent; give --call")
        return trained
    return [_find(calls, each, rollout) for each in wanted]


def _find(calls: Sequence[Call], given: str, rollout: Rollout) -> Call:
    by_number = {str(place): call for place, call in enumerate(calls, 1)}
    by_id = {call.id: call for call in calls}
    found = by_number.get(given) or by_id.get(given)
    if found is None:
        listed = "; ".join(f"{place} {call.agent} ({call.id})" for place, call in enumerate(calls, 1))
        raise ConfigError(f"--call {given}: rollout {rollout.id!r} has the calls {listed or 'none'}")
    if found.status != "completed":
        raise ConfigError(f"--call {given}: the call is {found.status}, so it has no reply to compare with")
    return found


def _show(rollout: Rollout, calls: Sequence[Call], ended: Mapping[str, Sequence[ForkResult]]) -> None:
    """A line for each call. Exits with 1 if no fork of a call can be compared."""
    console = Terminal()
    reward = rollout.reward or 0.0
    table = Table(title=f"rollout {rollout.id}, reward {number(reward)}", box=SIMPLE_HEAD)
    for column in ("call", "agent", "reply", "other replies", "95 % interval", "difference"):
        side: JustifyMethod = "left" if column in ("agent", "reply") else "right"
        table.add_column(column, justify=side, no_wrap=column != "reply", overflow="ellipsis")
    problems = []
    for place, call in enumerate(calls, 1):
        if call.id in ended:
            results = ended[call.id]
            value = reply_value(reward, [each.reward for each in results if each.reward is not None])
            reply = Text(transcript.text(transcript.replies(call)), no_wrap=True, overflow="ellipsis")
            table.add_row(str(place), Text(call.agent), reply, *_cells(value, len(results)))
            problems += [(place, each.problem) for each in results if each.problem is not None]
    console.print(table)
    for (place, problem), count in _counted(problems).items():
        text = f"call {place}: {count} of {samples_of(ended)} forks can't be compared: {problem}"
        console.print(Text(text, "yellow"), soft_wrap=True)
    console.print(
        "difference: the reward on record less the mean with other replies; above 0 the reply was better "
        "than others of the same policy",
        soft_wrap=True,
    )
    if any(all(each.reward is None for each in results) for results in ended.values()):
        raise typer.Exit(1)


def samples_of(ended: Mapping[str, Sequence[ForkResult]]) -> int:
    """How many rollouts forked at each call."""
    return len(next(iter(ended.values())))


def _counted(problems: Iterable[tuple[int, str]]) -> dict[tuple[int, str], int]:
    counts: dict[tuple[int, str], int] = {}
    for each in problems:
        counts[each] = counts.get(each, 0) + 1
    return counts


def _cells(value: ReplyValue, samples: int) -> tuple[str, str, str]:
    if value.mean is None or value.interval is None or value.difference is None:
        return "-", "-", "-"
    low, high = value.interval
    few = "" if len(value.others) == samples else f" ({len(value.others)})"
    return f"{value.mean:.3f}{few}", f"{low:.3f} to {high:.3f}", f"{value.difference:+.3f}"
