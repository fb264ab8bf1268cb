"""Where a run's numbers come from: a few lines in `show`, all of it with `--provenance`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer
from rich.text import Text

from lightning_core.cli.rollouts import open_run
from lightning_core.errors import ConfigError

_SHOWN = ("python", "agent-lightning-core", "torch", "transformers", "vllm", "verl")


async def show_provenance(path: Path) -> None:
    """All that is known of a run's origin, as JSON. ConfigError if nothing is."""
    async with open_run(path) as (store, run_id):
        run = await store.find_run(run_id)
    if run is None or not run.provenance:
        raise ConfigError(f"run {run_id!r} was begun by a version that did not note where it came from")
    typer.echo(json.dumps(run.provenance, indent=2))


def origin_lines(origin: Mapping[str, Any]) -> Text:
    """Script, commit, machine, versions and command line, a line each."""
    again = len(origin.get("resumed", []))
    times = f", resumed {again} time{'s' if again > 1 else ''}" if again else ""
    lines = {
        "script": f"{origin.get('script') or 'none'}{_commit(origin.get('git'))}",
        "command": shlex.join(origin.get("command", [])),
        "machine": _machine(origin.get("machine", {})),
        "versions": ", ".join(f"{n} {v}" for n, v in origin.get("versions", {}).items() if n in _SHOWN),
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
