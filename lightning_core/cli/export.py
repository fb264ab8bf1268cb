"""`agentlightning export`: a run's rollouts sent to a collector, its numbers written for TensorBoard."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from lightning_core.cli.rollouts import ROLLOUT, choose, find_rollouts, open_run
from lightning_core.errors import ConfigError, UnsupportedError
from lightning_core.heartbeat import find_living
from lightning_core.trace import read_traces
from lightning_core.trackers.tensorboard import TensorBoard, find_earlier
from lightning_core.trainer.tracking import replay


def export(
    run: Annotated[Path, typer.Argument(help="Folder of a run, such as runs/20260101-120000.")],
    target: Annotated[
        str, typer.Argument(help="URL of a collector of OTLP over HTTP, or a folder for TensorBoard.")
    ],
    rollout: Annotated[str | None, typer.Option(help=ROLLOUT + " (default: all that were begun)")] = None,
) -> None:
    """Send a run's records to an OpenTelemetry collector (a URL), or write them for TensorBoard (a folder).

    A collector gets calls, tool runs, rewards and spans: each rollout becomes one trace. Its ids follow from
    the run, so sending again sends the same spans. Headers, such as a key, are taken from
    OTEL_EXPORTER_OTLP_HEADERS. TensorBoard gets every step, evaluation and alert in the store; writing again
    into the same folder replaces what was there.

        agentlightning export runs/demo http://localhost:4318
        agentlightning export runs/demo logs/demo
    """
    if "://" in target:
        asyncio.run(export_run(run, target, rollout))
    else:
        asyncio.run(export_tensorboard(run, Path(target)))


async def export_run(path: Path, url: str, which: str | None) -> None:
    """Send the rollouts of a run, or one of them; those that never began are left out.

    Raises ConfigError for a run or rollout that is not there, ExportError if the collector did not take
    everything; what it took before stays there, and the same command sends the same spans again.
    """
    try:
        from lightning_core.otlp import Collector, to_spans
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            f"to send traces, {error.name!r} must be installed: pip install 'agent-lightning-core[otel]'"
        ) from error
    logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)  # its complaints are raised here
    console = Console(stderr=True)
    sent = 0
    async with open_run(path) as (store, run_id):
        begun = [rollout for rollout in await find_rollouts(store, run_id) if rollout.attempts]
        if not begun:
            raise ConfigError(f"run {run_id!r} has no rollouts yet")
        chosen = begun if which is None else [choose(begun, which)]
        with Collector(url) as collector, Progress(console=console) as progress:
            for rollout in progress.track(chosen, description="exporting rollouts"):
                (trace,) = await read_traces(store, [rollout])
                spans = to_spans(trace)
                await asyncio.to_thread(collector.send, spans)
                sent += len(spans)
    console.print(f"sent {sent} spans of {len(chosen)} rollouts to {collector.shown}", soft_wrap=True)


async def export_tensorboard(path: Path, folder: Path) -> None:
    """Write all steps, evaluations and alerts of a run. ConfigError for a run that is not there, and for a
    folder where its trainer writes."""
    async with open_run(path) as (store, run_id):
        run = await store.find_run(run_id)
        if run is None:
            raise ConfigError(f"run {run_id!r} was not begun yet")
        if any(find_earlier(folder, run_id)) and await find_living(store, run_id, "trainer"):
            raise ConfigError(
                f"run {run_id!r} is being trained, and {str(folder)!r} holds event files of it, which its "
                "trainer may be writing: give another folder, or wait until the training has ended"
            )
        steps = await replay(store, run, TensorBoard(folder))
    console = Console(stderr=True)
    console.print(f"wrote {steps} steps; see them with: tensorboard --logdir {folder}", soft_wrap=True)
