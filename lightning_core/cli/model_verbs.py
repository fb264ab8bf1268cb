"""The verbs under `agentlightning models`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from lightning_core.cli import models
from lightning_core.versions import POLICY, read_number

app = typer.Typer(
    help="Versions of a run's weights and prompts: list them, compare them, go back, take one out.",
    no_args_is_help=True,
)
_Run = Annotated[str, typer.Argument(help="Folder of a run, such as runs/demo; with --store its id.")]
_Store = Annotated[str | None, typer.Option(help="URL of the run's store, where its folder is not at hand.")]
_Name = Annotated[str, typer.Option(help="What has versions: the weights, or the name of a prompt.")]
_Backend = Annotated[str, typer.Option(help="Backend that reads the weights.")]


def _number(text: str) -> int:
    number = read_number(text)
    if number is None:
        raise typer.BadParameter(f"{text!r} is no number of a version: give one such as 12")
    return number


@app.command("list")
def list_command(run: _Run, store: _Store = None, name: _Name = POLICY) -> None:
    """List the versions: what each was made from, by whom, what it came to, and which one is served.

    agentlightning models list runs/demo
    """
    asyncio.run(models.list_versions(run, store, name))


@app.command()
def diff(
    run: _Run,
    before: Annotated[int, typer.Argument(help="A version.", parser=_number)],
    after: Annotated[int, typer.Argument(help="Another one.", parser=_number)],
    store: _Store = None,
    name: _Name = POLICY,
    backend: _Backend = "local",
) -> None:
    """Compare two versions: their numbers, and how far each tensor moved, or which lines of a prompt changed.

    agentlightning models diff runs/demo 0 40
    """
    asyncio.run(models.show_difference(run, store, name, (before, after), backend))


@app.command()
def rollback(
    run: _Run,
    version: Annotated[int, typer.Argument(help="The version to serve from now on.", parser=_number)],
    store: _Store = None,
    name: _Name = POLICY,
    author: Annotated[str | None, typer.Option(help="Who decided it (default: the user's name).")] = None,
) -> None:
    """Make a version the current one: gateways of the run answer by it within a second.

    It is about serving. While the run is trained it is refused, and training that goes on later does so from
    its newest checkpoint, which is then current again.

        agentlightning models rollback runs/demo 12
    """
    asyncio.run(models.roll_back(run, store, name, version, author))


@app.command()
def export(
    run: _Run,
    version: Annotated[int, typer.Argument(help="The version to take out.", parser=_number)],
    out: Annotated[Path, typer.Option(help="A new folder.")],
    store: _Store = None,
    name: _Name = POLICY,
    backend: _Backend = "local",
) -> None:
    """Write a version as a plain transformers folder, LoRA merged; a prompt as a text file.

    agentlightning models export runs/demo 12 --out models/boats
    """
    asyncio.run(models.export_model(run, store, name, version, out, backend))
