"""`agentlightning serve`: gateway and backend alone."""

from __future__ import annotations

import asyncio
import secrets
import signal

from rich.console import Console

from lightning_core.gateway.app import Gateway
from lightning_core.gateway.server import GatewayServer
from lightning_core.gateway.tokens import Tokens
from lightning_core.plugins import load_plugins
from lightning_core.trainer.session import make_backend, open_store
from lightning_core.trainer.trainer import Trainer


async def serve_model(model: str, backend_name: str, store_url: str, host: str, port: int) -> None:
    """Serve until interrupted; calls need no token and are recorded as belonging to no rollout."""
    console = Console(stderr=True)
    plugins = load_plugins()
    backend = make_backend(Trainer(model=model, backend=backend_name), plugins)
    async with open_store(store_url, plugins) as store:
        await backend.start()
        try:
            tokens = Tokens(secrets.token_bytes(32))
            gateway = Gateway(backend.upstream, store, tokens, agents=None, anonymous=True)
            async with GatewayServer(gateway, host, port) as server:
                variables = f"OPENAI_BASE_URL={server.url}/v1 OPENAI_API_KEY=none"
                console.print(f"serving {model!r}; set {variables} (Ctrl-C ends)", soft_wrap=True)
                await interrupted()
        finally:
            await backend.close()


async def interrupted() -> None:
    """Return at the first SIGINT or SIGTERM."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, stop.set)
    await stop.wait()
