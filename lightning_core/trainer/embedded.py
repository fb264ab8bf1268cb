"""The gateway and the runner in the trainer's own process."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from urllib.parse import urlsplit

from lightning_core.errors import GatewayError
from lightning_core.gateway.app import Gateway
from lightning_core.gateway.server import GatewayServer
from lightning_core.presence import Presence, make_member
from lightning_core.runner import Runner
from lightning_core.stores.base import Store
from lightning_core.trainer.folder import RunFolder
from lightning_core.trainer.settings import Settings
from lightning_core.types import Run

log = logging.getLogger(__name__)

EVERY_ADDRESS = ("0.0.0.0", "::")
"""Hosts that are listened on and can't be called."""


@asynccontextmanager
async def serving_gateway(
    gateway: Gateway, store: Store, run: Run, folder: RunFolder, trainer: Settings
) -> AsyncIterator[str]:
    """Serve the gateway, and let the run's members say where; gives its URL for this machine."""
    async with AsyncExitStack() as stack:
        server = await _listen(stack, gateway, folder, trainer)
        own = urlsplit(server.url)
        folder.write_address((folder.read_address() or {}).get("store"), own.port)
        everywhere = own.hostname in EVERY_ADDRESS
        url = told_address(server.url, trainer.address)
        member = make_member(run.id, "gateway", "trainer", url=url, instance=gateway.instance)
        await stack.enter_async_context(Presence(store, member))
        yield f"http://127.0.0.1:{own.port}" if everywhere else server.url


def told_address(listening: str, address: str | None) -> str:
    """Where others are told to reach a gateway that listens at a URL."""
    own = urlsplit(listening)
    everywhere = own.hostname in EVERY_ADDRESS
    return (address or (f"http://{socket.gethostname()}:{own.port}" if everywhere else listening)).rstrip("/")


async def _listen(
    stack: AsyncExitStack, gateway: Gateway, folder: RunFolder, trainer: Settings
) -> GatewayServer:
    """At the port that is asked for. Otherwise a resumed run listens where it did before, if that is free."""
    kept = (folder.read_address() or {}).get("port")
    if trainer.port is None and kept is not None:
        try:
            return await stack.enter_async_context(GatewayServer(gateway, trainer.host, kept))
        except GatewayError as error:
            log.warning("%s: it is given a new port", error)
    return await stack.enter_async_context(GatewayServer(gateway, trainer.host, trainer.port or 0))


@asynccontextmanager
async def serving_runner(runner: Runner, store: Store, run: Run) -> AsyncIterator[asyncio.Task[None]]:
    """Run rollouts while the block runs; gives the task that does. What is unfinished then is given back."""
    stop = asyncio.Event()
    member = make_member(run.id, "runner", runner.worker, slots=runner.concurrency)
    async with Presence(store, member):
        serving = asyncio.create_task(runner.serve(stop))
        try:
            yield serving
        finally:
            stop.set()
            await serving
