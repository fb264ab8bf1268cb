"""`agentlightning fork`: a recorded rollout run again up to a call, with other replies from there, with a
reply that a person wrote, or from another prompt."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

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
from lightning_core.insight.counterfactual import ForkResult, ReplyValue, count_problems, reply_value
from lightning_core.insight.verdict import say as number
from lightning_core.plugins import load_plugins
from lightning_core.records.types import Call, Rollout
from lightning_core.stores.base import get_run
from lightning_core.texts.terminal import Terminal
from lightning_core.trainer.folder import write_atomically
from lightning_core.trainer.forking import (
    PLAIN,
    SAMPLES,
    Edit,
    check_script,
    forkable,
    read_edit,
    run_forks,
    write_prompt,
)
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
    samples: Annotated[
        int | None,
        typer.Option(
            min=1, help=f"Rollouts that fork at each call (default: {SAMPLES}, of a greedy rollout 1)."
        ),
    ] = None,
    reply: Annotated[
        str | None,
        typer.Option(help="Give the app this reply at the call: text, or an assistant's message as JSON."),
    ] = None,
    prompt: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The call's prompt, as JSON, to sample from. A missing file is written, for you to edit.",
        ),
    ] = None,
    given: Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help=SET)] = None,
) -> None:
    """Go back to a call of a recorded rollout, sample other replies, and compare the rewards.

    Your app runs again for each sample. Calls before the fork get the recorded replies. All others are
    sampled by the version of the weights that answered then. An app whose prompts depend on time, chance or
    the network is refused, with the first difference. Nothing is trained.

    With --reply the app gets your reply at the call, and goes on from there. With --prompt the policy gets
    your prompt there.

        agentlightning fork train.py runs/demo --rollout best --call 3 --samples 8
        agentlightning fork train.py runs/demo --rollout worst --call 2 --reply "SELECT name FROM boats"
    """

    wanting = prompt is not None and reply is None and not prompt.exists()
    edit = None if wanting else read_edit(reply, None if prompt is None else _read(prompt))

    def once(trainer: Trainer, solve: Any, **tasks: Iterable[Any]) -> None:
        with reading(run):
            if edit is None:
                asyncio.run(_write_prompt(run, rollout, call or (), prompt or Path()))
            else:
                asyncio.run(_fork(trainer, solve, run, rollout, call or (), samples, edit))

    call_once(script, context.args, read_launch(given or (), {}), once)


async def _fork(
    trainer: Trainer,
    solve: Any,
    path: Path,
    which: str,
    wanted: Sequence[str],
    given: int | None,
    edit: Edit,
) -> None:
    async with open_run(path) as (store, run_id):
        run = await get_run(store, run_id)
        check_script(run, solve)
        recorded = await choose(store, run_id, which)
        calls = forkable((await store.get_calls([recorded.id]))[recorded.id])
        chosen = _chosen(calls, wanted, recorded)
        samples = given or (1 if recorded.sampling.temperature == 0 and edit != PLAIN else SAMPLES)
        say(
            f"{len(chosen) * samples} rollouts fork from {recorded.id}, {samples} at each of "
            f"{len(chosen)} calls"
        )
        ended = await run_forks(
            *(store, run, recorded, chosen, samples, edit),
            settings=trainer,
            solve=solve,
            plugins=load_plugins(),
        )
    _show(recorded, calls, ended, edit)


async def _write_prompt(path: Path, which: str, wanted: Sequence[str], file: Path) -> None:
    """Write the prompt of one call to a new file."""
    async with open_run(path) as (store, run_id):
        recorded = await choose(store, run_id, which)
        chosen = _chosen(forkable((await store.get_calls([recorded.id]))[recorded.id]), wanted, recorded)
    if len(chosen) != 1:
        raise ConfigError(f"a prompt is of one call, and these are {len(chosen)}; name one with --call")
    write_atomically(file, f"{write_prompt(chosen[0])}\n".encode())
    say(f"wrote the prompt of call {chosen[0].id} to {file}; edit it, and run the same command again")


def _read(file: Path) -> str:
    try:
        return file.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"can't read the prompt in {str(file)!r}: {error}") from error


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
    return found


_INSTEAD: Final = {"none": "other replies", "reply": "your reply", "prompt": "your prompt"}
"""The column of the rewards, by the kind of the edit."""


def _show(
    rollout: Rollout, calls: Sequence[Call], ended: Mapping[str, Sequence[ForkResult]], edit: Edit
) -> None:
    """A line for each call. Exits with 1 if no fork of a call can be compared."""
    console = Terminal()
    reward, instead = rollout.reward or 0.0, _INSTEAD[edit.kind]
    table = Table(title=f"rollout {rollout.id}, reward {number(reward)}", box=SIMPLE_HEAD)
    for column in ("call", "agent", "reply", instead, "95 % interval", "difference"):
        side: JustifyMethod = "left" if column in ("agent", "reply") else "right"
        table.add_column(column, justify=side, no_wrap=column != "reply", overflow="ellipsis")
    problems = []
    for place, call in enumerate(calls, 1):
        if call.id in ended:
            results = ended[call.id]
            value = reply_value(reward, [each.reward for each in results if each.reward is not None])
            reply = Text(transcript.text(transcript.replies(call)), no_wrap=True, overflow="ellipsis")
            table.add_row(str(place), Text(call.agent), reply, *_cells(value, len(results)))
            problems += [f"call {place}: {line}" for line in count_problems(results)]
    console.print(table)
    for problem in problems:
        console.print(Text(problem, "yellow"), soft_wrap=True)
    console.print(
        f"difference: the reward on record less the mean with {instead}; above 0 the record was better",
        soft_wrap=True,
    )
    if any(all(each.reward is None for each in results) for results in ended.values()):
        raise typer.Exit(1)


def _cells(value: ReplyValue, samples: int) -> tuple[str, str, str]:
    if value.mean is None or value.interval is None or value.difference is None:
        return "-", "-", "-"
    low, high = value.interval
    few = "" if len(value.others) == samples else f" ({len(value.others)})"
    return f"{value.mean:.3f}{few}", f"{low:.3f} to {high:.3f}", f"{value.difference:+.3f}"
