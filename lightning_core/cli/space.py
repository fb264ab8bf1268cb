"""`agentlightning runs rm` and `runs prune`: what runs take on the disk, and how to get it back."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from lightning_core.backends.preflight import gib
from lightning_core.cli.rollouts import open_run, reading
from lightning_core.errors import ConfigError, LightningError
from lightning_core.plugins import load_plugins
from lightning_core.stores.base import get_run
from lightning_core.stores.versions import policies_of
from lightning_core.texts.terminal import Terminal, shown
from lightning_core.trainer.folder import PolicyFolder, RunFolder
from lightning_core.trainer.versions import settle

_Folders = Annotated[list[Path], typer.Argument(help="Folders of runs, such as runs/20260101-120000.")]
_Yes = Annotated[bool, typer.Option("--yes", "-y", help="Delete without a question.")]


def disk_bytes(folder: Path) -> int:
    """Bytes of all files below the folder; a file with several names counts once."""
    found = {}
    for path in folder.rglob("*"):
        try:
            status = path.lstat()
        except FileNotFoundError:  # a trainer writes there
            continue
        if not path.is_dir():
            found[status.st_dev, status.st_ino] = status.st_size
    return sum(found.values())


def rm(runs: _Folders, yes: _Yes = False) -> None:
    """Delete runs: their folders with records, checkpoints and policy.

    A run that is being trained is refused. Records that a run keeps in a store elsewhere stay there.

        agentlightning runs rm runs/20260101-120000 runs/20260102-090000
    """
    folders = [_existing(path) for path in runs]
    sizes = {folder: disk_bytes(folder.path) for folder in folders}
    for folder, size in sizes.items():
        typer.echo(shown(f"{folder.path}  {gib(size)}{_elsewhere(folder)}"))
    if not yes:
        typer.confirm(f"delete {len(folders)} run{'s' * (len(folders) > 1)}?", abort=True)
    for folder in folders:
        with folder:
            shutil.rmtree(folder.path)
    typer.echo(f"deleted {gib(sum(sizes.values()))}")


def prune(
    paths: Annotated[
        list[Path], typer.Argument(help="Runs, or folders that hold runs.", metavar="[PATH]...")
    ] = [  # noqa: B006
        Path("runs")
    ],
) -> None:
    """Free the disk of what runs need no more, and keep every policy.

    A finished run loses all checkpoints but the newest, and the optimizer's state in that one. A run that was
    stopped keeps its newest checkpoint whole, to resume from. Kept are the version that is served, those that
    a person chose, and the best one. A run that is being trained is left alone. The command ends with 1 if a
    run could not be read.

        agentlightning runs prune
        agentlightning runs prune runs/20260101-120000
    """
    console, freed, unread = Terminal(), 0, False
    for path in _runs_among(paths):
        before = disk_bytes(path)
        try:
            with reading(path):
                asyncio.run(_prune(path))
        except (LightningError, OSError) as problem:  # such as a server that is away: the others go on
            unread = unread or not RunFolder(path, resume=True).held
            console.print(f"{path}: left as it is: {problem}", markup=False, highlight=False, soft_wrap=True)
            continue
        after = disk_bytes(path)
        freed += before - after
        console.print(f"{path}: {gib(before)} → {gib(after)}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"freed {gib(freed)}", highlight=False)
    if unread:
        raise typer.Exit(1)


async def _prune(path: Path) -> None:
    with RunFolder(path, resume=True) as folder:
        async with open_run(path) as (store, run_id):
            run = await get_run(store, run_id)
            backend = load_plugins().part("backend", str(run.config.get("backend", "local")))
            reader = backend if run.status == "finished" else None
            await settle(store, folder, reader)
            for name in dict.fromkeys(policies_of(run).values()):
                await settle(store, PolicyFolder(folder, name), reader, name)


def _runs_among(paths: Sequence[Path]) -> list[Path]:
    """The folders of runs among the paths, and below those that are none. Raises ConfigError for a path with
    no run."""
    found = []
    for path in paths:
        below = [path] if (path / "run.json").exists() else sorted(p.parent for p in path.glob("*/run.json"))
        if not below:
            raise ConfigError(f"there is no run in {str(path)!r}; `agentlightning runs` lists the runs")
        found += below
    return found


def _existing(path: Path) -> RunFolder:
    folder = RunFolder(path, resume=True)
    if folder.find_run() is None:
        raise ConfigError(f"{str(path)!r} is not a run's folder; `agentlightning runs` lists the runs")
    if folder.held:
        raise ConfigError(f"a trainer is running in {str(path)!r}: stop it first")
    return folder


def _elsewhere(folder: RunFolder) -> str:
    store = (folder.read_address() or {}).get("store")
    return f" (its records in {store} stay)" if store else ""
