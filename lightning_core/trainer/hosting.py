"""A gateway: a process that plays only the gateway's role, in a run that is trained elsewhere.

Others of its kind may be beside it: what it must know of the run, its weights included, is in the run's
record and folders.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from lightning_core.gateway.app import Gateway
from lightning_core.gateway.server import GatewayServer
from lightning_core.gateway.versions import ENGINES
from lightning_core.plugins import Plugins, load_plugins
from lightning_core.presence import Presence, make_member
from lightning_core.stores.base import Store
from lightning_core.trainer.embedded import told_address
from lightning_core.trainer.joining import Joined, Joining, own_name, until_signal
from lightning_core.trainer.parts import open_store
from lightning_core.trainer.playing import agents_of, tokens_of
from lightning_core.trainer.serving import serving_run
from lightning_core.types import Run
from lightning_core.versions import POLICY

WEIGHTS_SECONDS = 0.5
"""Between two looks for the weights of a run that has just begun."""


@dataclass(frozen=True, slots=True)
class Hosting:
    """Where a gateway listens, and what it serves."""

    host: str = "127.0.0.1"
    port: int = 0
    """0: a free one."""
    address: str | None = None
    """The URL under which others reach it, where that is not the one it listens at."""
    backend: str = "local"
    """The backend whose engine serves the weights."""
    engines: int = ENGINES
    """Versions that may be served at once."""
    anonymous: bool = False
    hosts: tuple[str, ...] = ()
    """Names by which those without a token may reach it, beside addresses and this machine's own."""
    """Serve requests without a token too, which are recorded as belonging to no rollout."""


async def host_gateway(hosting: Hosting, joining: Joining) -> None:
    """Serve the run until it is finished, or until a signal.

    Raises ModelError if the run's weights can't be reached from here, GatewayError if the port is taken.
    """
    plugins = load_plugins()
    over = until_signal()
    async with open_store(joining.store, plugins) as store:
        part = Host(hosting, store, plugins, own_name(joining), joining.say)
        await Joined(joining, store, part, over).stay()


class Host:
    """The gateway's part in a run (`trainer.joining.Part`)."""

    wanted = "a run"

    def __init__(
        self, hosting: Hosting, store: Store, plugins: Plugins, own: str, say: Callable[[str], None]
    ) -> None:
        self.hosting = hosting
        self.store = store
        self.plugins = plugins
        self.own = own
        self.name = f"gateway {own}"
        self.say = say

    def misfit(self, run: Run) -> str | None:
        """Why it can't serve this run."""
        return None if run.secret else "it has no key for tokens; resume it once with this version"

    def outdated(self, run: Run, now: Run) -> bool:
        """Never: what it needs of a record stays as it is when the run is resumed."""
        return False

    @asynccontextmanager
    async def play(self, run: Run) -> AsyncIterator[asyncio.Future[None]]:
        """Serve while the block runs."""
        serving = asyncio.create_task(self._serve(run))
        try:
            yield serving
        finally:
            serving.cancel()
            await asyncio.wait({serving})
            if not serving.cancelled():
                serving.result()

    async def _serve(self, run: Run) -> None:
        hosting = self.hosting
        await self._weights(run)
        async with AsyncExitStack() as stack:
            upstream = await stack.enter_async_context(
                serving_run(self.store, run, self.plugins, backend=hosting.backend, engines=hosting.engines)
            )
            agents, tokens = agents_of(run), tokens_of(run)
            gateway = Gateway(
                upstream,
                self.store,
                tokens,
                agents=agents,
                anonymous=hosting.anonymous,
                hosts=hosting.hosts,
            )
            server = await stack.enter_async_context(GatewayServer(gateway, hosting.host, hosting.port))
            url = told_address(server.url, hosting.address)
            member = make_member(run.id, "gateway", self.own, url=url, instance=gateway.instance)
            await stack.enter_async_context(Presence(self.store, member))
            self.say(f"{self.name} listens at {url}")
            await asyncio.Event().wait()

    async def _weights(self, run: Run) -> None:
        """Wait until there is something to serve."""
        while True:
            if await self.store.list_resources(run.id, POLICY):
                return
            await asyncio.sleep(WEIGHTS_SECONDS)
