"""`agentlightning models`: the versions of a run's weights and prompts, and which of them is served."""

from __future__ import annotations

import asyncio
import difflib
import getpass
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import JustifyMethod
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from lightning_core.backends.base import Backend, check_versions
from lightning_core.backends.weights.sizes import TensorChange
from lightning_core.cli.rollouts import open_run, reading
from lightning_core.cli.runs import describe_age
from lightning_core.errors import ConfigError, LightningError, ModelError
from lightning_core.plugins import load_plugins
from lightning_core.records.types import ResourceVersion, Run
from lightning_core.stores.base import Store, get_run
from lightning_core.stores.heartbeat import check_not_trained
from lightning_core.stores.versions import (
    POLICY,
    choose,
    find_current,
    get_version,
    is_weights,
    list_choices,
    policies_of,
    read_number,
    weights_of,
)
from lightning_core.texts.terminal import Terminal
from lightning_core.trainer.folder import check_there
from lightning_core.trainer.parts import open_reader, open_store

_SHOWN: Final = 12
"""Tensors that a comparison lists."""
_NUMBERS: Final = ("step", "reward", "sampled", "greedy", "choosing")
"""Metrics that the list has columns for, in this order."""


SERVED: Final = "what `agentlightning serve RUN` and the run's gateways answer by"


@dataclass(frozen=True, slots=True)
class _Where:
    """The options before the verb."""

    store: str | None
    name: str


app = typer.Typer(
    help="List, compare, choose and export versions of a run's weights and prompts.",
    no_args_is_help=True,
)
_Run = Annotated[str, typer.Argument(help="Folder of a run, such as runs/demo; with --store its id.")]


def _number(text: str) -> int:
    number = read_number(text)
    if number is None:
        raise typer.BadParameter(f"{text!r} is not the number of a version: give one such as 12")
    return number


@app.callback()
def options(
    context: typer.Context,
    store: Annotated[
        str | None, typer.Option(help="URL of the run's store, if its folder is not on this machine.")
    ] = None,
    name: Annotated[str, typer.Option(help="The weights, policy:NAME, or the name of a prompt.")] = POLICY,
) -> None:
    """List, compare, choose and export versions of a run's weights and prompts."""
    context.obj = _Where(store, name)


@app.command("list")
def list_command(context: typer.Context, run: _Run) -> None:
    """List the versions: figures, and which one is current; parent and author where they differ.

    agentlightning models list runs/demo
    """
    with reading(run):
        asyncio.run(list_versions(run, context.obj.store, context.obj.name))


@app.command()
def diff(
    context: typer.Context,
    run: _Run,
    before: Annotated[int, typer.Argument(help="A version.", parser=_number)],
    after: Annotated[int, typer.Argument(help="Another one.", parser=_number)],
) -> None:
    """Compare two versions: their figures, and how far each tensor moved or which lines of a prompt changed.

    agentlightning models diff runs/demo 0 40
    """
    where = context.obj
    with reading(run):
        asyncio.run(show_difference(run, where.store, where.name, (before, after)))


@app.command()
def rollback(
    context: typer.Context,
    run: _Run,
    version: Annotated[int, typer.Argument(help="The version to serve from now on.", parser=_number)],
) -> None:
    """Make a version the current one: gateways of the run serve it within a second.

    This changes what is served, not what is trained. During training it is refused. Training that continues
    later starts from its newest checkpoint, which is then current again.

        agentlightning models rollback runs/demo 12
    """
    with reading(run):
        asyncio.run(roll_back(run, context.obj.store, context.obj.name, version))


@app.command()
def export(
    context: typer.Context,
    run: _Run,
    version: Annotated[int, typer.Argument(help="The version to export.", parser=_number)],
    out: Annotated[Path, typer.Argument(help="A new folder.")],
) -> None:
    """Write a version as a transformers folder with LoRA merged, or a prompt as a text file.

    agentlightning models export runs/demo 12 models/boats
    """
    where = context.obj
    with reading(run):
        asyncio.run(export_model(run, where.store, where.name, version, out))


# what the verbs do ------------------------------------------------------------------------
@asynccontextmanager
async def open_versions(run: str, store: str | None, name: str) -> AsyncIterator[tuple[Store, str, Versions]]:
    """The store, the run's id in it, and the versions of that name. `run` is a folder, or an id in
    `store`."""
    if store is None:
        async with open_run(Path(run)) as (opened, run_id):
            yield opened, run_id, await _read(opened, run_id, name)
    else:
        check_there(store)
        async with open_store(store, load_plugins()) as opened:
            yield opened, run, await _read(opened, run, name)


Versions = list[ResourceVersion]


async def _read(store: Store, run_id: str, name: str) -> Versions:
    versions = await store.list_resources(run_id, name)
    if not versions:
        what = f"prompt {name!r}" if not is_weights(name) else "weights" if name == POLICY else repr(name)
        named = await _named_weights(store, run_id)
        others = f"; it has {', '.join([POLICY, *named])} (--name)" * bool(named)
        raise ConfigError(
            f"run {run_id!r} has no {what} in this store{others}; `agentlightning runs` lists the runs"
        )
    return versions


async def _named_weights(store: Store, run_id: str) -> list[str]:
    """The names of the weights of a run's named policies."""
    run = await store.find_run(run_id)
    return [] if run is None else list(map(weights_of, dict.fromkeys(policies_of(run).values())))


async def list_versions(run: str, store: str | None, name: str) -> None:
    """One line for each version, the current one marked; then who chose which."""
    console = Terminal()
    async with open_versions(run, store, name) as (opened, run_id, versions):
        console.print(_table(escape(f"versions of {name} in run {run_id}"), versions))
        for choice in await list_choices(opened, run_id, name):
            before = "" if choice.parent is None else f" in place of {choice.parent}"
            said = f"{choice.author} chose version {choice.uri}{before}, {_ago(choice.created_at)} ago"
            console.print(said, markup=False, highlight=False)
        if name == POLICY and (named := await _named_weights(opened, run_id)):
            said = f"versions of its other policies: --name {' or '.join(named)}"
            console.print(said, markup=False, highlight=False)


def _table(title: str, versions: Versions) -> Table:
    current = find_current(versions)
    shown = [name for name in _NUMBERS if any(name in version.metrics for version in versions)]
    rewards = "; reward: of the training rollouts that it answered" if "reward" in shown else ""
    table = Table(title=title, caption=f"● is the current version: {SERVED}{rewards}")
    forks = any(each.version != (each.parent or 0) + 1 for each in versions[1:])
    authors = len({each.author for each in versions}) > 1
    columns = ["", "version", *(["parent"] if forks else []), *(["author"] if authors else [])]
    for column in (*columns, *shown, "size", "age"):
        side: JustifyMethod = "left" if column in ("", "author") else "right"
        table.add_column(column, justify=side, no_wrap=column != "author")
    for version in versions:
        table.add_row(
            "●" if current is not None and version.version == current.version else "",
            str(version.version),
            *([_or_dash(version.parent)] if forks else []),
            *([Text(version.author)] if authors else []),
            *(_figure(version.metrics.get(name)) for name in shown),
            _size(version),
            _ago(version.created_at),
        )
    return table


async def show_difference(run: str, store: str | None, name: str, numbers: tuple[int, int]) -> None:
    """Two versions side by side: their records, their numbers, and how their contents differ."""
    console = Terminal()
    async with open_versions(run, store, name) as (opened, run_id, versions):
        before, after = (get_version(versions, number) for number in numbers)
        console.print(_side_by_side(before, after))
        if before.kind == "prompt":
            console.print(_text_difference(before, after), markup=False, highlight=False, soft_wrap=True)
            return
        reader = _reader(await get_run(opened, run_id), versions, "compare_versions")
        changes = await reader.compare_versions(str(before.uri), str(after.uri))
    console.print(_moved(changes, numbers))


def _side_by_side(before: ResourceVersion, after: ResourceVersion) -> Table:
    table = Table(title=f"versions {before.version} and {after.version} of {escape(before.name)}")
    for column in ("", str(before.version), str(after.version), "change"):
        table.add_column(column, justify="right" if column else "left")
    for label, *said in (
        ("parent", _or_dash(before.parent), _or_dash(after.parent)),
        ("author", before.author, after.author),
        ("age", _ago(before.created_at), _ago(after.created_at)),
        ("size", _size(before), _size(after)),
    ):
        table.add_row(label, *map(Text, said), "")
    for name in sorted(before.metrics.keys() | after.metrics.keys()):
        one, two = before.metrics.get(name), after.metrics.get(name)
        change = "" if one is None or two is None else f"{two - one:+.3g}"
        table.add_row(Text(name), _figure(one), _figure(two), change)
    return table


def _text_difference(before: ResourceVersion, after: ResourceVersion) -> str:
    old, new = (str(version.uri).splitlines() for version in (before, after))
    names = [f"{before.name} {version.version}" for version in (before, after)]
    said = "\n".join(difflib.unified_diff(old, new, names[0], names[1], lineterm=""))
    return said or "the texts are the same"


def _moved(changes: Sequence[TensorChange], numbers: tuple[int, int]) -> Table:
    still = sum(change.relative == 0.0 for change in changes)
    more = max(len(changes) - _SHOWN, 0)
    left = f"; the {more} others moved less" if more else ""
    table = Table(
        title=f"weights of {numbers[0]} and {numbers[1]}, what moved most first",
        caption=f"{len(changes)} tensors, {still} of them the same{left}",
    )
    for column in ("tensor", "numbers", "change"):
        table.add_column(column, justify="left" if column == "tensor" else "right")
    for change in changes[:_SHOWN]:
        moved = "not comparable" if change.relative is None else f"{change.relative:.3%}"
        table.add_row(Text(change.name), f"{change.size:,}", moved)
    return table


async def roll_back(run: str, store: str | None, name: str, version: int) -> None:
    """Make an earlier version the current one. Raises ConfigError while the run is trained."""
    async with open_versions(run, store, name) as (opened, run_id, versions):
        if is_weights(name):
            await check_not_trained(opened, run_id)
        before = find_current(versions)
        chosen = await choose(opened, run_id, version, author=_user(), name=name)
    was = f", {before.version} was before" if before is not None else ""
    Terminal().print(
        f"version {chosen.version} of {name} is the current one{was}", markup=False, highlight=False
    )


def _user() -> str:
    """Who gives the command; the number of a user without a name, as in a container."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"user {os.getuid()}"


async def export_model(run: str, store: str | None, name: str, version: int, folder: Path) -> None:
    """Write a version's content to a new folder. Raises ConfigError if there is something in it."""
    _check_empty(folder)
    async with open_versions(run, store, name) as (opened, run_id, versions):
        chosen = get_version(versions, version)
        if chosen.kind == "prompt":
            _write_text(folder / f"{Path(name).name}.txt", str(chosen.uri))
        else:
            await _write_weights(await _exporter(opened, run_id, versions), chosen, folder)
    said = f"version {version} of {name} is in {folder}"
    Terminal().print(said, markup=False, highlight=False, soft_wrap=True)


@asynccontextmanager
async def open_weights(run: str, version: int | None) -> AsyncIterator[tuple[Backend, ResourceVersion]]:
    """A backend that can export a version of a run's weights, and that version; None: the current one."""
    async with open_versions(run, None, POLICY) as (opened, run_id, versions):
        if policies := policies_of(await get_run(opened, run_id)):
            raise ConfigError(
                f"run {run!r} has the policies {', '.join(dict.fromkeys(policies.values()))} beside its own, "
                "and one of them is no run: export the one you mean (agentlightning models --name "
                f"{weights_of(next(iter(policies.values())))} export), and name its folder"
            )
        chosen = find_current(versions) if version is None else get_version(versions, version)
        if chosen is None:
            newest = versions[-1].version
            raise ConfigError(f"run {run!r} has no current version: name one, such as {run}@{newest}")
        yield await _exporter(opened, run_id, versions), chosen


async def export_weights(run: str, version: int | None, folder: Path) -> None:
    """Write a version of a run's weights to a new transformers folder; None: the current version."""
    async with open_weights(run, version) as (reader, chosen):
        await _write_weights(reader, chosen, folder)


async def _exporter(store: Store, run_id: str, versions: Versions) -> Backend:
    return _reader(await get_run(store, run_id), versions, "export_version")


async def _write_weights(reader: Backend, chosen: ResourceVersion, folder: Path) -> None:
    """Boundary: an error of the libraries that write weights says nothing about the run's records."""
    try:
        await reader.export_version(str(chosen.uri), folder)
    except LightningError:
        raise
    except Exception as error:
        raise ModelError(
            f"can't write version {chosen.version} to {str(folder)!r}: {type(error).__name__}: {error}"
        ) from error


def _check_empty(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{str(folder)!r} is not empty, and nothing is overwritten; give a new folder")


def _write_text(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def _reader(run: Run, versions: Versions, method: str) -> Backend:
    reader = open_reader(run, versions, load_plugins())
    check_versions(reader, method)
    return reader


def _size(version: ResourceVersion) -> str:
    if version.uri is None:
        return "deleted"
    if version.kind == "prompt":
        return f"{len(version.uri):,} characters"
    folder = Path(version.uri)
    if not folder.is_dir():  # a model's name, or a folder of another machine
        return "not here" if folder.is_absolute() else version.uri
    return f"{sum(file.stat().st_size for file in folder.rglob('*') if file.is_file()) / 1e6:,.1f} MB"


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _or_dash(value: int | None) -> str:
    return "-" if value is None else str(value)


def _ago(when: float) -> str:
    return describe_age(time.time() - when)
