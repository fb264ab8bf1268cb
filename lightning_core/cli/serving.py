"""`agentlightning serve`, `gateway`, `console`, `api`, `token`: what answers without a trainer, its keys."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

import typer

from lightning_core.cli.rollouts import open_run
from lightning_core.errors import AccessError, ConfigError
from lightning_core.gateway.app import Gateway
from lightning_core.gateway.server import GatewayServer
from lightning_core.gateway.tokens import Tokens
from lightning_core.plugins import load_plugins
from lightning_core.stores.versions import policies_of, read_number
from lightning_core.texts.terminal import Terminal
from lightning_core.trainer.folder import RunFolder, check_there
from lightning_core.trainer.parts import make_backend, open_store
from lightning_core.trainer.roles.gateway import host_gateway, make_gateway, serving_run
from lightning_core.trainer.roles.joining import Joining, until_signal
from lightning_core.trainer.settings import LARGEST_PORT, Settings, parse_listen
from lightning_core.trainer.summary import find_summary, serving_notes

_ALLOW_HOST = "A host name that clients and web pages may use without a token; may be repeated."
_Listen = Annotated[
    str, typer.Option(metavar="HOST:PORT", help="Where to listen; the default is this machine only.")
]


def say(text: str) -> None:
    """A line for a person, on standard error."""
    Terminal(stderr=True).print(text, markup=False, highlight=False, soft_wrap=True)


def serve(
    what: Annotated[
        str,
        typer.Argument(
            metavar="RUN|MODEL",
            help="A run's folder or RUN@VERSION, a transformers folder, or a model's name.",
        ),
    ] = "tiny",
    store: Annotated[
        str | None, typer.Option(help="URL of the store that records the calls (default: memory).")
    ] = None,
    listen: _Listen = "127.0.0.1:8000",
    port: Annotated[int | None, typer.Option(help="Port on this machine, in place of --listen.")] = None,
    allow_host: Annotated[list[str] | None, typer.Option(help=_ALLOW_HOST)] = None,
) -> None:
    """Serve a model, or the current version of a run, behind the recording gateway, without training.

    Any OpenAI client can use it: set OPENAI_BASE_URL to the printed address. The run's current version
    answers each request; a client gets another version by the model name NAME@VERSION. RUN@12 always serves
    version 12.

        agentlightning serve runs/demo
    """
    where = parse_listen(listen if port is None else f"127.0.0.1:{port}")
    asyncio.run(serve_model(what, store, *where, tuple(allow_host or ())))


def gateway(
    store: Annotated[str, typer.Option(help="URL of the run's store.")],
    run: Annotated[str | None, typer.Option(help="Id of the run (default: the newest in training).")] = None,
    listen: _Listen = "127.0.0.1:0",
    address: Annotated[
        str | None, typer.Option(help="URL at which workers reach it, if it differs from --listen.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of this gateway; restarted with it, it replaces the old one.")
    ] = None,
) -> None:
    """Serve the rollouts of a run that was started with `train --set remote=gateway`.

    Start any number of gateways, before or after the trainer. Each reads the weights that the trainer saves,
    so the run's folder must have the same path here. It ends when the run is finished.

        agentlightning gateway --store postgresql://me@db.local/runs
    """
    joining = Joining(store=store, run=run, name=name, say=say)
    asyncio.run(host_gateway(joining, *parse_listen(listen), address))


def console(
    context: typer.Context,
    what: Annotated[
        str,
        typer.Argument(metavar="RUN|STORE", help="A run's folder, a folder of runs, or a store's URL."),
    ] = "runs",
    port: Annotated[
        int, typer.Option(min=0, max=LARGEST_PORT, help="Port on this machine; 0 takes a free one.")
    ] = 0,
    save: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Write a page that opens from disk to this new folder, and end."),
    ] = None,
    reward: Annotated[
        str | None,
        typer.Option(metavar="FILE:FUNCTION", help="A reward function of yours, for Why's “What if?”."),
    ] = None,
    script: Annotated[
        Path | None,
        typer.Option(help="The script that the run was begun with: a rollout's page may run it, to go on."),
    ] = None,
) -> None:
    """Show runs in the browser, during and after training: curves, rollouts, replay, and why.

    It listens only on this machine. The printed address holds a token: anyone who has it can open the page.
    With --script you can edit a reply or a prompt in a rollout, and see how your app goes on. Arguments after
    `--` go to the script.

        agentlightning console runs/demo
        agentlightning console runs/demo --script train.py
    """
    if script is None and context.args:
        raise ConfigError(f"{context.args} would go to a script, and none is named; give --script")
    if script is not None and not script.is_file():
        raise ConfigError(f"there is no script {str(script)!r}; give the path of a Python file")
    if save is None:
        app = () if script is None else (str(script.resolve()), *context.args)
        asyncio.run(serve_console(what, port, reward, app))
        return
    if script is not None:
        raise ConfigError("--script is for the live page: a page on disk runs nothing; leave it out")
    if reward is not None:
        raise ConfigError("--reward is for the live page: a page on disk can't ask what if; leave it out")
    from lightning_core.console.saving import save_page

    say(f"wrote {save_page(what, load_plugins(), save)}; it opens in any browser")


def api(
    store: Annotated[str, typer.Option(help="URL of the store to serve.")],
    listen: _Listen = "127.0.0.1:8100",
) -> None:
    """Serve a store over REST, for workers and clients in any language.

    Requests need a token, made by `agentlightning token`. With LIGHTNING_API_SECRET in the environment it
    also accepts tokens for all runs. /api/v1/openapi.json describes the API.

        agentlightning api --store sqlite:///runs/demo/store.db
    """
    asyncio.run(serve_api(store, *parse_listen(listen)))


def token(
    scope: Annotated[str, typer.Argument(help="worker, client or admin.")],
    store: Annotated[str | None, typer.Option(help="URL of the run's store.")] = None,
    run: Annotated[
        str | None, typer.Option(help="Id of the run (default: all runs, with LIGHTNING_API_SECRET).")
    ] = None,
    hours: Annotated[float, typer.Option(help="Hours until the token expires.")] = 24.0,
) -> None:
    """Print a token for the REST API.

    A worker may lease rollouts and report results, a client may enqueue and read, an admin may do everything.

        agentlightning token worker --store sqlite:///runs/demo/store.db --run demo
    """
    asyncio.run(print_token(store, run, scope, hours))


# what the verbs do ------------------------------------------------------------------------
async def serve_model(
    what: str, store: str | None, host: str, port: int, hosts: tuple[str, ...] = ()
) -> None:
    """Serve until interrupted; calls without a token are recorded as belonging to no rollout."""
    folder, version = _run_and_version(what)
    if RunFolder(folder, resume=True).read_address() is None:
        if version is not None:
            raise ConfigError(f"{str(folder)!r} is not a run's folder; `agentlightning runs` lists the runs")
        making = _of_model(what, store, hosts)
    elif store is not None:
        raise ConfigError(f"run {what!r} has a store of its own; leave --store out")
    else:
        making = _of_run(folder, hosts, version)
    async with making as (gateway, what):
        stop = until_signal()  # before the first request can be answered
        async with GatewayServer(gateway, host, port) as server:
            variables = f"OPENAI_BASE_URL={server.url}/v1 OPENAI_API_KEY=none"
            say(f"serving {what}; set {variables} (Ctrl-C ends)")
            for note in _notes(folder):
                say(note)
            await stop.wait()


def _notes(folder: Path) -> list[str]:
    """How the policy in a run's folder, or in its `policy/`, must be asked; empty for other models."""
    for path in (folder, folder.parent):
        if (summary := find_summary(path)) is not None:
            return serving_notes(summary)
    return []


def _run_and_version(what: str) -> tuple[Path, int | None]:
    """A folder and the number after `@`; a folder of that very name is taken as it is."""
    name, mark, version = what.rpartition("@")
    number = read_number(version) if mark and not Path(what).exists() else None
    return (Path(what), None) if number is None else (Path(name), number)


@asynccontextmanager
async def _of_model(
    model: str, store_url: str | None, hosts: tuple[str, ...]
) -> AsyncIterator[tuple[Gateway, str]]:
    plugins = load_plugins()
    backend = make_backend(Settings(model=model), plugins)
    async with open_store(store_url or "memory://", plugins) as store:
        await backend.start()
        try:
            tokens = Tokens(secrets.token_bytes(32))
            name = backend.upstream.model_name
            gateway = Gateway(
                *(backend.upstream, store, tokens),
                agents=None,
                anonymous=True,
                hosts=hosts,
                also_named=model if "/" not in model else None,
            )
            yield gateway, repr(model) if name == model else f"{model!r} as {name!r}"
        finally:
            await backend.close()


@asynccontextmanager
async def _of_run(
    folder: Path, hosts: tuple[str, ...], version: int | None
) -> AsyncIterator[tuple[Gateway, str]]:
    """Serves that version of the run; None: the current one, whichever that is when a request comes. Any
    other can be asked for by name."""
    async with open_run(folder) as (store, run_id):
        run = await store.find_run(run_id)
        if run is None or not run.secret:
            raise ConfigError(f"run {run_id!r} has not started; train it first")
        async with serving_run(store, run, load_plugins(), version=version) as upstream:
            await upstream.open()
            gateway = make_gateway(store, run, upstream, anonymous=True, hosts=hosts)
            served = "the current version" if version is None else f"version {version}"
            if policies := policies_of(run):
                served += f", and the models {', '.join(dict.fromkeys(policies.values()))},"
            yield gateway, f"{served} of run {run_id!r} as {upstream.model_name!r}"


async def serve_console(what: str, port: int, reward: str | None, script: Sequence[str]) -> None:
    """Serve until interrupted. Raises ConfigError if there is no run, or no such reward function."""
    from lightning_core.console.reasons import load_rewards
    from lightning_core.console.server import Console
    from lightning_core.console.shelf import Shelf

    async with Shelf(what, load_plugins(), load_rewards(reward), script) as shelf:
        made = Console(shelf)
        async with GatewayServer(made, port=port, name="lightning-console") as server:
            stop = until_signal()
            say(f"{server.url}/?token={made.token}")
            say("open this address in a browser, and keep it private (Ctrl-C ends)")
            await stop.wait()


# the store over REST, and what opens it -----------------------------------------------------
async def serve_api(store_url: str, host: str, port: int) -> None:
    """Serve the store until interrupted."""
    from lightning_core.api.access import SECRET_NAME, server_secret  # FastAPI takes half a second to import
    from lightning_core.api.app import BASE, LIMITS, Api

    secret = server_secret(os.environ.get(SECRET_NAME))
    async with (
        open_store(store_url, load_plugins()) as store,
        GatewayServer(Api(store, secret=secret), host, port, "lightning-api", limits=LIMITS) as server,
    ):
        stop, console = until_signal(), Terminal(stderr=True)
        console.print(f"serving {server.url}{BASE} (Ctrl-C ends)", soft_wrap=True, highlight=False)
        if secret is None:
            console.print(f"no {SECRET_NAME}: only tokens of one run are taken", highlight=False)
        await stop.wait()


async def print_token(store_url: str | None, run_id: str | None, scope: str, hours: float) -> None:
    """Print a token, and nothing else. Raises ConfigError for what there is no token for."""
    from lightning_core.api.access import SCOPES, RunGrant, issue

    named = next((each for each in SCOPES if each == scope), None)
    if named is None:
        raise ConfigError(f"scope {scope!r} is none of {', '.join(SCOPES)}")
    if not hours > 0:
        raise ConfigError(f"hours={hours:g} must be more than 0")
    grant = RunGrant(named, run_id, time.time() + hours * 3600)
    secret = _server_secret() if run_id is None else await _run_secret(store_url, run_id)
    Terminal().print(issue(secret, grant), soft_wrap=True, markup=False, highlight=False)


def _server_secret() -> bytes:
    from lightning_core.api.access import SECRET_NAME, server_secret

    secret = server_secret(os.environ.get(SECRET_NAME))
    if secret is None:
        raise ConfigError(
            f"a token for all runs is signed with {SECRET_NAME}, which is not set; give --run for a token of "
            f"one run, or set it, here and where the API is served, to what this prints: "
            "python -c 'import secrets; print(secrets.token_hex(32))'"
        )
    return secret


async def _run_secret(store_url: str | None, run_id: str) -> bytes:
    from lightning_core.api.access import secret_of

    if store_url is None:
        raise ConfigError("--run needs --store: the run's secret is kept in its store")
    check_there(store_url)
    async with open_store(store_url, load_plugins()) as store:
        try:
            return secret_of(await store.find_run(run_id), run_id)
        except AccessError as error:
            raise ConfigError(f"no token can be made: {error}") from None
