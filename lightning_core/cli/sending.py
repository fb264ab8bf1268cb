"""`agentlightning sync`: a run's records sent to a collector, or written for TensorBoard."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from lightning_core.cli.rollouts import open_run, reading
from lightning_core.errors import ConfigError, UnsupportedError
from lightning_core.insight.trace import read_traces
from lightning_core.stores.base import get_run
from lightning_core.stores.heartbeat import find_living
from lightning_core.texts.terminal import Terminal
from lightning_core.trackers.tensorboard import TensorBoard, find_earlier
from lightning_core.trainer.observers import replay


def sync(
    run: Annotated[Path, typer.Argument(help="Folder of a run, such as runs/20260101-120000.")],
    target: Annotated[
        str, typer.Argument(help="URL of a collector of OTLP over HTTP, or a folder for TensorBoard.")
    ],
) -> None:
    """Send a run's records to an OpenTelemetry collector (a URL), or write them for TensorBoard (a folder).

    A collector gets calls, tool runs, rewards and spans: each rollout becomes one trace. Its ids follow from
    the run, so sending again sends the same spans. Headers, such as a key, are taken from
    OTEL_EXPORTER_OTLP_HEADERS. TensorBoard gets every step, evaluation and alert in the store; writing again
    into the same folder replaces what was there.

        agentlightning sync runs/demo http://localhost:4318
        agentlightning sync runs/demo logs/demo
    """
    with reading(run):
        asyncio.run(sync_run(run, target) if "://" in target else sync_tensorboard(run, Path(target)))


# what the verb does -----------------------------------------------------------------------
async def sync_run(path: Path, url: str) -> None:
    """Send the rollouts of a run; those that never began are left out.

    Raises ConfigError for a run that is not there, ExportError if the collector did not take
    everything; what it took before stays there, and the same command sends the same spans again.
    """
    try:
        from lightning_core.trackers.otlp import OtlpCollector, to_spans
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            f"to send traces, {error.name!r} must be installed: pip install 'agent-lightning-core[otel]'"
        ) from error
    logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)  # its complaints are raised here
    console = Terminal(stderr=True)
    sent = 0
    async with open_run(path) as (store, run_id):
        begun = [rollout for rollout in await store.find_rollouts(run_id) if rollout.attempts]
        if not begun:
            raise ConfigError(f"run {run_id!r} has no rollouts yet")
        with OtlpCollector(url) as collector, Progress(console=console) as progress:
            for rollout in progress.track(begun, description="sending rollouts"):
                (trace,) = await read_traces(store, [rollout])
                spans = to_spans(trace)
                await asyncio.to_thread(collector.send, spans)
                sent += len(spans)
    said = f"sent {sent} spans of {len(begun)} rollouts to {collector.shown}"
    console.print(said, markup=False, soft_wrap=True)


async def sync_tensorboard(path: Path, folder: Path) -> None:
    """Write all steps, evaluations and alerts of a run. NotFoundError for a run that is not there,
    ConfigError for a folder where its trainer writes."""
    async with open_run(path) as (store, run_id):
        run = await get_run(store, run_id)
        if any(find_earlier(folder, run_id)) and await find_living(store, run_id, "trainer"):
            raise ConfigError(
                f"run {run_id!r} is being trained, and {str(folder)!r} holds event files of it, which its "
                "trainer may be writing: give another folder, or wait until the training has ended"
            )
        try:
            steps = await replay(store, run, TensorBoard(folder))
        except (FileExistsError, NotADirectoryError) as problem:
            raise ConfigError(f"can't write into {str(folder)!r}: {problem}; give a folder") from problem
    console = Terminal(stderr=True)
    said = f"wrote {steps} steps; see them with: tensorboard --logdir {folder}"
    console.print(said, markup=False, soft_wrap=True)
