"""`agentlightning api` and `token`: the store over REST, and what opens it."""

from __future__ import annotations

import os
import time

from rich.console import Console

from lightning_core.api.access import SCOPES, SECRET_NAME, Grant, Scope, issue, secret_of, server_secret
from lightning_core.api.app import BASE, LIMITS, Api
from lightning_core.errors import AccessError, ConfigError
from lightning_core.gateway.server import GatewayServer
from lightning_core.plugins import load_plugins
from lightning_core.trainer.parts import open_store
from lightning_core.trainer.roles.joining import until_signal


async def serve_api(store_url: str, host: str, port: int) -> None:
    """Serve the store until interrupted."""
    secret = server_secret(os.environ.get(SECRET_NAME))
    async with (
        open_store(store_url, load_plugins()) as store,
        GatewayServer(Api(store, secret=secret), host, port, "lightning-api", limits=LIMITS) as server,
    ):
        stop, console = until_signal(), Console(stderr=True)
        console.print(f"serving {server.url}{BASE} (Ctrl-C ends)", soft_wrap=True, highlight=False)
        if secret is None:
            console.print(f"no {SECRET_NAME}: only tokens of one run are taken", highlight=False)
        await stop.wait()


async def print_token(store_url: str | None, run_id: str | None, scope: str, hours: float) -> None:
    """Print a token, and nothing else. Raises ConfigError for what there is no token for."""
    grant = Grant(_scope(scope), run_id, time.time() + hours * 3600)
    if not hours > 0:
        raise ConfigError(f"hours={hours:g} must be more than 0")
    secret = _server_secret() if run_id is None else await _run_secret(store_url, run_id)
    Console().print(issue(secret, grant), soft_wrap=True, markup=False, highlight=False)


def _scope(name: str) -> Scope:
    for scope in SCOPES:
        if scope == name:
            return scope
    raise ConfigError(f"scope {name!r} is none of {', '.join(SCOPES)}")


def _server_secret() -> bytes:
    secret = server_secret(os.environ.get(SECRET_NAME))
    if secret is None:
        raise ConfigError(
            f"a token for all runs is signed with {SECRET_NAME}, which is not set; give --run for a token of "
            f"one run, or set it, here and where the API is served, to what this prints: "
            "python -c 'import secrets; print(secrets.token_hex(32))'"
        )
    return secret


async def _run_secret(store_url: str | None, run_id: str) -> bytes:
    if store_url is None:
        raise ConfigError("--run needs --store: the run's secret is kept in its store")
    async with open_store(store_url, load_plugins()) as store:
        try:
            return secret_of(await store.find_run(run_id), run_id)
        except AccessError as error:
            raise ConfigError(f"no token can be made: {error}") from None
