"""The trainer's role: its process plays gateway and runner too, or waits for processes that play them."""

from __future__ import annotations

import asyncio
import logging
import shlex
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final
from urllib.parse import urlsplit

from lightning_core.backends.base import Backend
from lightning_core.errors import GatewayError
from lightning_core.gateway.app import Gateway
from lightning_core.gateway.server import GatewayServer
from lightning_core.heartbeat import Heartbeat, living, make_member
from lightning_core.masking import without_password
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
from lightning_core.types import Role, Rollout, Run

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
"""Between two looks at who is there; the end of the last rollout is heard of at once."""
NAMES: Final[dict[Role, str]] = {"runner": "worker", "gateway": "gateway"}
COMMANDS: Final[dict[Role, str]] = {
    "runner": "agentlightning worker {script} --store {store}",
    "gateway": "agentlightning gateway --store {store}",
}


# in this process ----------------------------------------------------------------------------
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


# in others ----------------------------------------------------------------------------------
class RemoteWaiter:
    """Waits for what other processes do in a run."""

    def __init__(
        self,
        store: Store,
        run_id: str,
        roles: Iterable[Role],
        store_url: str,
        *,
        on_rollout: Callable[[Rollout], None],
        on_note: Callable[[str], None],
    ) -> None:
        """`store_url` is how others find the store; `on_note` is given what a person should know."""
        self._store = store
        self._run_id = run_id
        self._there: dict[Role, int] = dict.fromkeys(sorted(roles), -1)
        self._store_url = store_url
        self._on_rollout = on_rollout
        self._on_note = on_note

    async def wait(self, rollout_ids: Sequence[str]) -> list[Rollout]:
        """Return the rollouts once all are finished; `on_rollout` is given each soon after it ended."""
        told: set[str] = set()
        while True:
            finished = await self._store.wait_finished(rollout_ids, timeout=LOOK_SECONDS)
            for rollout in finished:
                if rollout.id not in told:
                    told.add(rollout.id)
                    self._on_rollout(rollout)
            if len(told) == len(set(rollout_ids)):
                return finished
            await self.look()

    async def look(self) -> None:
        """Note which roles no process plays, and how many have come or gone."""
        members = living(await self._store.list_members(self._run_id))
        for role, before in self._there.items():
            count = sum(member.role == role for member in members)
            if count != before:
                self._there[role] = count
                self._on_note(self._note(role, count, before))

    def _note(self, role: Role, count: int, before: int) -> str:
        if count:
            return f"{count} {NAMES[role]}{'s' if count > 1 else ''} at work"
        gone = f"no {NAMES[role]} is left" if before > 0 else f"waiting for a {NAMES[role]}"
        return f"{gone}; start one with: {command_for(role, self._store_url)}"


def command_for(role: Role, store: str) -> str:
    """What starts a process for the role, as a line for a shell; without the store's password."""
    script, shown = sys.argv[0] or "SCRIPT", without_password(store)
    return COMMANDS[role].format(script=shlex.quote(script), store=shlex.quote(shown))
