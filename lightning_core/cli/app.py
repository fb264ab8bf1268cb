"""The command's verbs; each says in its help what it does, what it writes and what comes next."""

from __future__ import annotations

import asyncio
import logging
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from lightning_core import __version__, telemetry
from lightning_core.cli import export, models, runs, serving
from lightning_core.cli.training import plan_script, read_launch, train_script, work_script
from lightning_core.errors import LightningError
from lightning_core.trainer.roles.gateway import Hosting, host_gateway
from lightning_core.trainer.roles.joining import Joining
from lightning_core.trainer.settings import parse_listen

_ALLOW_HOST = "A host whose clients and web pages may use it without a token; may be given several times."
_OWN = "A setting of the worker, such as concurrency=8 or workers=ray:8; may be given several times."
_SET = "Another setting of the trainer or of its backend; may be given several times."
_MODEL = "A transformers folder, a name on the hub, or 'tiny'; a Llama- or Qwen-like model."
_Listen = Annotated[
    str, typer.Option(metavar="HOST:PORT", help="Where to listen; beyond this machine only if you say so.")
]
app = typer.Typer(
    name="agentlightning",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(models.app, name="models")


def _say_version(asked: bool) -> None:
    if asked:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def command(
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_say_version, help="Say the version, and end."),
    ] = False,
) -> None:
    """Train the agents you already have."""


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": False})
def train(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(help="A Python script that calls Trainer(...).fit(...).")],
    steps: Annotated[int | None, typer.Option(help="Updates to make.")] = None,
    model: Annotated[str | None, typer.Option(help=_MODEL)] = None,
    backend: Annotated[
        str | None,
        typer.Option(help="Backend to train on: 'local' or 'verl'; a script keeps its own settings of it."),
    ] = None,
    store: Annotated[str | None, typer.Option(help="URL of the store.")] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Where the run lies (default: runs/<date-time>).")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of task order and sampling.")] = None,
    remote: Annotated[
        str | None,
        typer.Option(help="Roles that other processes play: 'runner', 'gateway' or both, by comma."),
    ] = None,
    given: Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help=_SET)] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --folder, or with the newest one.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be trained, and start and write nothing.")
    ] = False,
) -> None:
    """Run a training script, with these settings in place of its own.

    Every setting of Trainer can be given with --set, as JSON or as text, several times: --set concurrency=64
    --set air=true --set trackers=wandb; one of its backend as --set backend.address=auto. What stands after
    `--` is given to the script. Ctrl-C ends cleanly; the same command with --resume goes on from the last
    update.

        agentlightning train examples/sql/train.py --steps 20 --seed 1
    """
    named = {
        "steps": steps,
        "model": model,
        "backend": backend,
        "store": store,
        "folder": folder,
        "seed": seed,
        "remote": [role.strip() for role in remote.split(",")] if remote else None,
        "resume": resume or None,
    }
    (plan_script if dry_run else train_script)(script, context.args, read_launch(given or (), named))


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": False})
def worker(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(help="The script that the trainer was started with.")],
    store: Annotated[str, typer.Option(help="URL of the run's store.")],
    run: Annotated[
        str | None, typer.Option(help="Id of the run (default: the newest of this script that is trained).")
    ] = None,
    given: Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help=_OWN)] = None,
    name: Annotated[
        str | None,
        typer.Option(help="Its own name: started again under it, it gives back at once what it held before."),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="End also when the run is stopped, instead of waiting.")
    ] = False,
) -> None:
    """Run rollouts for a trainer that was started elsewhere with `train --remote runner`.

    It may be started before the trainer, several times, and on any machine that reaches store and gateway.
    It waits while the trainer or the gateway is away, and ends when the run is finished. Ctrl-C gives back
    what it holds.

        agentlightning worker examples/sql/train.py --store postgresql://me@db.local/runs
    """
    say = partial(Console(stderr=True).print, markup=False, highlight=False, soft_wrap=True)
    joining = Joining(store=store, run=run, name=name, once=once, say=say)
    work_script(script, context.args, read_launch(given or (), {}), joining)


@app.command()
def serve(
    what: Annotated[
        str,
        typer.Argument(metavar="RUN|MODEL", help="A run's folder, a transformers folder, or a model's name."),
    ] = "tiny",
    backend: Annotated[str, typer.Option(help="Backend that serves it.")] = "local",
    store: Annotated[
        str | None, typer.Option(help="URL of the store that records the calls (default: memory).")
    ] = None,
    listen: _Listen = "127.0.0.1:8000",
    allow_host: Annotated[list[str] | None, typer.Option(help=_ALLOW_HOST)] = None,
) -> None:
    """Serve a model, or the current version of a run, behind the recording gateway, without training.

    Any OpenAI client can talk to it: set OPENAI_BASE_URL to the address printed. Of a run, the version that
    is current when a request comes answers it, and NAME@VERSION as the model's name asks for another.

        agentlightning serve runs/demo
    """
    asyncio.run(serving.serve(what, backend, store, *parse_listen(listen), tuple(allow_host or ())))


@app.command()
def gateway(
    store: Annotated[str, typer.Option(help="URL of the run's store.")],
    run: Annotated[
        str | None, typer.Option(help="Id of the run (default: the newest that is trained).")
    ] = None,
    listen: _Listen = "127.0.0.1:0",
    address: Annotated[
        str | None, typer.Option(help="URL at which workers reach it, if it is not the one it listens at.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Its own name: started again under it, it replaces the old one.")
    ] = None,
    backend: Annotated[str, typer.Option(help="Backend whose engine serves the weights.")] = "local",
    allow_host: Annotated[list[str] | None, typer.Option(help=_ALLOW_HOST)] = None,
    once: Annotated[
        bool, typer.Option("--once", help="End also when the run is stopped, instead of waiting.")
    ] = False,
) -> None:
    """Serve the rollouts of a run that was started elsewhere with `train --remote gateway`.

    It may be started before the trainer, and several times. It reads the weights where the trainer saves
    them, so it must reach the run's folder at the same path. It ends when the run is finished. With
    --allow-host it serves requests without a rollout's token too.

        agentlightning gateway --store postgresql://me@db.local/runs
    """
    say = partial(Console(stderr=True).print, markup=False, highlight=False, soft_wrap=True)
    host, port = parse_listen(listen)
    hosting = Hosting(
        host=host,
        port=port,
        address=address,
        backend=backend,
        anonymous=bool(allow_host),
        hosts=tuple(allow_host or ()),
    )
    asyncio.run(host_gateway(hosting, Joining(store=store, run=run, name=name, once=once, say=say)))


@app.command()
def api(
    store: Annotated[str, typer.Option(help="URL of the store to serve.")],
    listen: _Listen = "127.0.0.1:8100",
) -> None:
    """Serve a store over REST, for workers and clients in any language.

    Requests bear a token, made by `agentlightning token`. With LIGHTNING_API_SECRET in the environment tokens
    for all runs are taken as well. /api/v1/openapi.json describes what is served.

        agentlightning api --store sqlite:///runs/demo/store.db
    """
    from lightning_core.cli.rest import serve_api  # FastAPI takes half a second to import

    asyncio.run(serve_api(store, *parse_listen(listen)))


@app.command()
def token(
    scope: Annotated[str, typer.Argument(help="worker, client or admin.")],
    store: Annotated[str | None, typer.Option(help="URL of the run's store.")] = None,
    run: Annotated[
        str | None, typer.Option(help="Id of the run (default: all runs, by LIGHTNING_API_SECRET).")
    ] = None,
    hours: Annotated[float, typer.Option(help="How long it is good for.")] = 24.0,
) -> None:
    """Print a token for the REST API.

    A worker may lease rollouts and report on them, a client may enqueue and read, an admin may do everything.

        agentlightning token worker --store sqlite:///runs/demo/store.db --run demo
    """
    from lightning_core.cli.rest import print_token

    asyncio.run(print_token(store, run, scope, hours))


app.command()(runs.runs)
app.command()(runs.show)
app.command()(runs.alerts)
app.command()(export.export)


@app.command()
def plugins() -> None:
    """List the installed plugins, the hooks they implement, and those that could not be loaded."""
    runs.list_plugins()


def main() -> None:
    """Entry point: errors of this package are shown as one message, without a traceback."""
    telemetry.obey()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        app()
    except LightningError as error:
        Console(stderr=True).print(f"[red]{type(error).__name__}[/red]: ", end="")
        Console(stderr=True).print(str(error), markup=False, highlight=False)
        sys.exit(1)
