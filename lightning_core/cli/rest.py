"""`agentlightning api`: the store over REST."""

from __future__ import annotations

import os

from rich.console import Console

from lightning_core.api.app import BASE, LIMITS, Api
from lightning_core.api.scopes import SECRET_NAME, server_secret
from lightning_core.cli.serving import interruption
from lightning_core.gateway.server import GatewayServer
from lightning_core.plugins import load_plugins
from lightning_core.trainer.parts import open_store


async def serve_api(store_url: str, host: str, port: int) -> None:
    """Serve the store until interrupted."""
    secret = server_secret(os.environ.get(SECRET_NAME))
    async with (
        open_store(store_url, load_plugins()) as store,
        GatewayServer(Api(store, secret=secret), host, port, "lightning-api", limits=LIMITS) as server,
    ):
        stop, console = interruption(), Console(stderr=True)
        console.print(f"serving {server.url}{BASE} (Ctrl-C ends)", soft_wrap=True, highlight=False)
        if secret is None:
            console.print(f"no {SECRET_NAME}: only tokens of one run are taken", highlight=False)
        await stop.wait()
