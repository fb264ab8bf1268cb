"""The gateway and the runner in the trainer's own process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from urllib.parse import urlsplit

from lightning_core.backends.base import Backend
from lightning_core.errors import GatewayError
from lightning_core.gateway.app import Gateway
from lightning_core.gateway.server import GatewayServer
from lightning_core.heartbeat import Heartbeat, make_member
from lightning_core.plugins import Plugins
from lightning_core.runner.outcome import Solve
from lightning_core.stores.base import Store
from lightning_core.tracing.openai_sdk import instrument
from lightning_core.trainer.folder import RunFolder
from lightning_core.trainer.roles.gateway import EVERY_ADDRESS, make_upstream, public_address
from lightning_core.trainer.roles.runner import (
    agents_of,
    make_runner,
    rollout_config,
    serving_runner,
    tokens_of,
)
from lightning_core.trainer.settings import Settings
from lightning_core.types import Rollout, Run

log = logging.getLogger(__name__)


@asynccontextmanager
async def embedded_gateway(
    settings: Settings, store: Store, run: Run, backend: Backend, folder: RunFolder
) -> AsyncIterator[str]:
    """Serve the backend's policy, and list the gateway among the run's members; gives its URL for this
    machine."""
    async with AsyncExitStack() as stack:
        name = backend.upstream.model_name
        upstream = make_upstream(store, run.id, backend, name=name, embedded=True)
        stack.push_async_callback(upstream.close)
        gateway = Gateway(upstream, store, tokens_of(run), agents=agents_of(run))
        server = await _listen(stack, gateway, folder, settings)
        own = urlsplit(server.url)
        folder.write_address((folder.read_address() or {}).get("store"), own.port)
        url = public_address(server.url, settings.address)
        member = make_member(run.id, "gateway", "trainer", url=url, instance=gateway.instance)
        await stack.enter_async_context(Heartbeat(store, member))
        yield f"http://127.0.0.1:{own.port}" if own.hostname in EVERY_ADDRESS else server.url


async def _listen(
    stack: AsyncExitStack, gateway: Gateway, folder: RunFolder, settings: Settings
) -> GatewayServer:
    """At the port that is asked for. Otherwise a resumed run listens where it did before, if that is free."""
    kept = (folder.read_address() or {}).get("port")
    if settings.port is None and kept is not None:
        try:
            return await stack.enter_async_context(GatewayServer(gateway, settings.host, kept))
        except GatewayError as error:
            log.warning("%s: it is given a new port", error)
    return await stack.enter_async_context(GatewayServer(gateway, settings.host, settings.port or 0))


def embedded_name(run: Run) -> str:
    """The worker's name under which the trainer's process runs rollouts."""
    return f"{run.id}/embedded"


@asynccontextmanager
async def embedded_runner(
    settings: Settings,
    store: Store,
    run: Run,
    solve: Solve,
    plugins: Plugins,
    *,
    gateway_url: str | None,
    on_finished: Callable[[Rollout], None],
) -> AsyncIterator[asyncio.Task[None]]:
    """Run rollouts while the block runs; gives the task that does."""
    with instrument(plugins.who):
        runner = make_runner(
            solve,
            store,
            run,
            rollout_config(settings, solve),
            worker=embedded_name(run),
            concurrency=settings.concurrency,
            workers=settings.workers,
            gateway_url=gateway_url,
            on_finished=on_finished,
        )
        async with serving_runner(runner, store, run) as serving:
            yield serving
