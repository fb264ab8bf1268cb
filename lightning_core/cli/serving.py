"""`agentlightning serve` and `gateway`: a gateway without a trainer."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from rich.console import Console

from lightning_core.cli.rollouts import open_run
from lightning_core.errors import ConfigError
from lightning_core.gateway.app import Gateway
from lightning_core.gateway.server import GatewayServer
from lightning_core.gateway.tokens import Tokens
from lightning_core.plugins import load_plugins
from lightning_core.trainer.folder import RunFolder
from lightning_core.trainer.parts import make_backend, open_store
from lightning_core.trainer.roles.gateway import serving_run
from lightning_core.trainer.roles.joining import until_signal
from lightning_core.trainer.roles.runner import agents_of, tokens_of
from lightning_core.trainer.settings import Settings


async def serve(
    what: str, backend: str, store: str | None, host: str, port: int, hosts: tuple[str, ...] = ()
) -> None:
    """Serve until interrupted; calls without a token are recorded as belonging to no rollout."""
    folder = Path(what)
    if RunFolder(folder, resume=True).read_address() is None:
        making = _of_model(what, backend, store, hosts)
    elif store is not None:
        raise ConfigError(f"run {what!r} has a store of its own; leave --store out")
    else:
        making = _of_run(folder, backend, hosts)
    async with making as (gateway, what), GatewayServer(gateway, host, port) as server:
        stop = until_signal()
        variables = f"OPENAI_BASE_URL={server.url}/v1 OPENAI_API_KEY=none"
        Console(stderr=True).print(f"serving {what}; set {variables} (Ctrl-C ends)", soft_wrap=True)
        await stop.wait()


@asynccontextmanager
async def _of_model(
    model: str, backend_name: str, store_url: str | None, hosts: tuple[str, ...]
) -> AsyncIterator[tuple[Gateway, str]]:
    plugins = load_plugins()
    backend = make_backend(Settings(model=model, backend=backend_name), plugins)
    async with open_store(store_url or "memory://", plugins) as store:
        await backend.start()
        try:
            tokens = Tokens(secrets.token_bytes(32))
            gateway = Gateway(backend.upstream, store, tokens, agents=None, anonymous=True, hosts=hosts)
            yield gateway, repr(model)
        finally:
            await backend.close()


@asynccontextmanager
async def _of_run(folder: Path, backend: str, hosts: tuple[str, ...]) -> AsyncIterator[tuple[Gateway, str]]:
    """The run's current version, whichever that is when a request comes, and any that is asked for by
    name."""
    async with open_run(folder) as (store, run_id):
        run = await store.find_run(run_id)
        if run is None or not run.secret:
            raise ConfigError(f"run {run_id!r} has not begun; train it first")
        async with serving_run(store, run, load_plugins(), backend=backend) as upstream:
            gateway = Gateway(
                upstream, store, tokens_of(run), agents=agents_of(run), anonymous=True, hosts=hosts
            )
            yield gateway, f"the current version of run {run_id!r} as {upstream.model_name!r}"
