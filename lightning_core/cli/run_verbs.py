"""The verbs that read a run: `runs`, `show`, `alerts` and `export`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from lightning_core.cli import runs as run_views
from lightning_core.cli.export import export_run, export_tensorboard
from lightning_core.cli.origin import show_provenance
from lightning_core.cli.rollouts import show_rollouts
from lightning_core.errors import ConfigError

_Run = Annotated[Path, typer.Argument(help="Folder of a run, such as runs/20260101-120000.")]
_ROLLOUT = "A rollout: its id, how the id begins or ends, 'best' or 'worst'"


def runs(
    folder: Annotated[Path, typer.Argument(help="Folder that holds the runs.")] = Path("runs"),
) -> None:
    """List the runs of a folder, the newest first, with what they came to."""
    run_views.list_runs(folder)


def show(
    run: _Run,
    rollout: Annotated[str | None, typer.Option(help=_ROLLOUT)] = None,
    task: Annotated[
        str | None, typer.Option(help="Only rollouts of this task: its id, or how it begins.")
    ] = None,
    provenance: Annotated[
        bool, typer.Option("--provenance", help="Print where its numbers come from, as JSON.")
    ] = False,
) -> None:
    """Show a run: its curve, held-out success before and after, what each agent did, and its alerts.

    With --rollout it shows that rollout as a tree: calls, the tools they asked for, spans and rewards. With
    --task alone it lists the rollouts of that task.

        agentlightning show runs/demo --rollout worst
    """
    if provenance:
        asyncio.run(show_provenance(run))
    elif rollout is None and task is None:
        asyncio.run(run_views.show_run(run))
    else:
        asyncio.run(show_rollouts(run, rollout, task))


def alerts(run: _Run) -> None:
    """List what a run warned of, in the order it was found: what happened, to what, and what to do."""
    asyncio.run(run_views.list_alerts(run))


def export(
    run: _Run,
    otlp: Annotated[
        str | None, typer.Option(help="Base URL of a collector that speaks OTLP over HTTP.")
    ] = None,
    tensorboard: Annotated[Path | None, typer.Option(help="Folder for TensorBoard's event files.")] = None,
    rollout: Annotated[str | None, typer.Option(help=_ROLLOUT + " (default: all that were begun)")] = None,
) -> None:
    """Send a run's records to an OpenTelemetry collector, or write its numbers for TensorBoard, or both.

    --otlp sends calls, tool runs, rewards and spans: each rollout becomes one trace. Its ids follow from the
    run, so sending again sends the same spans. Headers, such as a key, are taken from
    OTEL_EXPORTER_OTLP_HEADERS. --tensorboard writes every step, evaluation and alert in the store; writing
    again into the same folder takes the place of what was there.

        agentlightning export runs/demo --otlp http://localhost:4318
        agentlightning export runs/demo --tensorboard logs/demo
    """
    if otlp is None and tensorboard is None:
        raise ConfigError("say where to: --otlp URL, --tensorboard FOLDER, or both")
    if otlp is not None:
        asyncio.run(export_run(run, otlp, rollout))
    if tensorboard is not None:
        asyncio.run(export_tensorboard(run, tensorboard))
