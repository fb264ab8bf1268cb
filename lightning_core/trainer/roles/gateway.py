"""The gateway's role: it answers for a run with the run's versions of the weights.

A process of its own (`agentlightning gateway`) plays it in a run that another process trains; there may be
several. What they must know of the run, its weights included, is in the run's record and folders.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lightning_core.backends.base import Backend, check_versions
from lightning_core.errors import ConfigError, ModelError
from lightning_core.gateway.app import Gateway
from lightning_core.gateway.engine_cache import VersionEngine
from lightning_core.gateway.naming import CONFIG
from lightning_core.gateway.policies import PolicyRouter
from lightning_core.gateway.server import GatewayServer
from lightning_core.gateway.versions import Embedded, VersionedUpstream, VersionRegistry
from lightning_core.plugins import Plugins, load_plugins
from lightning_core.prompts import PinnedPrompts
from lightning_core.records.types import ResourceVersion, Run
from lightning_core.stores.base import Store
from lightning_core.stores.heartbeat import Heartbeat, make_member
from lightning_core.stores.versions import POLICY, find_current, get_version, policies_of, weights_of
from lightning_core.trainer.parts import base_model, open_reader, open_store
from lightning_core.trainer.roles.joining import Joined, Joining, own_name, until_signal
from lightning_core.trainer.roles.runner import agents_of, tokens_of

WEIGHTS_SECONDS = 0.5
"""Between two looks for the weights of a run that has just begun."""
EVERY_ADDRESS = ("0.0.0.0", "::")
"""Hosts that are listened on and can't be called."""


async def host_gateway(joining: Joining, host: str, port: int, address: str | None) -> None:
    """Serve the run at `host` and `port` until it is finished, or until a signal.

    `address`: the URL under which others reach it, if that is not the one it listens at.
    Raises ModelError if the run's weights can't be reached from here, GatewayError if the port is taken.
    """
    plugins = load_plugins()
    over = until_signal()
    async with open_store(joining.store, plugins) as store:
        part = GatewayPart(joining, store, plugins, host, port, address)
        await Joined(joining, store, part, over).stay()


class GatewayPart:
    """The gateway's part in a run (`roles.joining.Part`)."""

    wanted = "a run"

    def __init__(
        self,
        joining: Joining,
        store: Store,
        plugins: Plugins,
        host: str = "127.0.0.1",
        port: int = 0,
        address: str | None = None,
    ) -> None:
        self.store = store
        self.plugins = plugins
        self.host, self.port, self.address = host, port, address
        self.own = own_name(joining)
        self.name = f"gateway {self.own}"
        self.say = joining.say

    def misfit(self, run: Run) -> str | None:
        """Why it can't serve this run."""
        return None if run.secret else "it has no key for tokens; resume it once with this version"

    def outdated(self, run: Run, now: Run) -> bool:
        """Never: what it needs of a record stays as it is when the run is resumed."""
        return False

    async def play(self, run: Run) -> None:
        """Serve, as soon as there are weights."""
        while True:
            if await self.store.list_resources(run.id, POLICY):
                break
            await asyncio.sleep(WEIGHTS_SECONDS)
        async with AsyncExitStack() as stack:
            upstream = await stack.enter_async_context(serving_run(self.store, run, self.plugins))
            gateway = make_gateway(self.store, run, upstream)
            server = await stack.enter_async_context(GatewayServer(gateway, self.host, self.port))
            url = public_address(server.url, self.address)
            member = make_member(run.id, "gateway", self.own, url=url, instance=gateway.instance)
            await stack.enter_async_context(Heartbeat(self.store, member))
            self.say(f"{self.name} listens at {url}")
            await asyncio.Event().wait()


def make_gateway(
    store: Store,
    run: Run,
    upstream: VersionedUpstream | PolicyRouter,
    *,
    anonymous: bool = False,
    hosts: tuple[str, ...] = (),
) -> Gateway:
    """A gateway for the rollouts of a run, and with `anonymous` for calls that belong to none."""
    names: Any = run.config.get(CONFIG)
    return Gateway(
        *(upstream, store, tokens_of(run)),
        agents=agents_of(run),
        anonymous=anonymous,
        hosts=hosts,
        prompts=PinnedPrompts(store, run),
        names=names,
        policies=policies_of(run),
    )


def refuse_policies(run: Run, what: str) -> None:
    """Raise ConfigError where a rollout would be pinned to one version, and each policy has its own."""
    if named := dict.fromkeys(policies_of(run).values()):
        raise ConfigError(
            f"{what} pins a rollout to one version, and run {run.id!r} has the policies {', '.join(named)} "
            f"beside "
            "its own, with versions of their own: use a run with one policy"
        )


def public_address(listening: str, address: str | None) -> str:
    """Where others reach a gateway that listens at a URL."""
    own = urlsplit(listening)
    everywhere = own.hostname in EVERY_ADDRESS
    return (address or (f"http://{socket.gethostname()}:{own.port}" if everywhere else listening)).rstrip("/")


# the weights ------------------------------------------------------------------------------
def make_upstream(
    store: Store,
    run_id: str,
    backend: Backend,
    *,
    name: str,
    embedded: bool,
    policy: str | None = None,
    pinned: int | None = None,
) -> VersionedUpstream:
    """An upstream for the weights of a policy of the run, called `name`; `embedded`: the backend is started
    and trains them; `pinned`: the version that answers in place of the current one."""

    async def open_engine(source: str, version: int) -> VersionEngine:
        check_versions(backend, "open_engine")
        return await backend.open_engine(source, version)

    own = Embedded(backend.upstream, lambda: backend.policy_version) if embedded else None
    registry = VersionRegistry(store, run_id, name=weights_of(policy), pinned=pinned)
    return VersionedUpstream(name, registry, open_engine, embedded=own)


@asynccontextmanager
async def serving_run(
    store: Store, run: Run, plugins: Plugins, *, version: int | None = None
) -> AsyncIterator[VersionedUpstream | PolicyRouter]:
    """An upstream for a run that is not trained in this process; `version` answers in place of the current
    one of the run's own policy. Raises ConfigError for a run without weights, NotFoundError for a version
    that it does not have, ModelError if the weights can't be reached from here."""
    async with AsyncExitStack() as stack:
        own = await stack.enter_async_context(_serving_policy(store, run, plugins, None, version))
        named = {
            name: await stack.enter_async_context(_serving_policy(store, run, plugins, name, None))
            for name in dict.fromkeys(policies_of(run).values())
        }
        yield PolicyRouter(own, named) if named else own


@asynccontextmanager
async def _serving_policy(
    store: Store, run: Run, plugins: Plugins, policy: str | None, version: int | None
) -> AsyncIterator[VersionedUpstream]:
    versions = await store.list_resources(run.id, weights_of(policy))
    current = find_current(versions) if version is None else get_version(versions, version)
    if current is None:
        raise ConfigError(f"run {run.id!r} has no weights yet; wait until its trainer has started")
    _check_reachable(run, current)
    reader = open_reader(run, versions, plugins)
    name = _name(base_model(run, versions))
    upstream = make_upstream(store, run.id, reader, name=name, embedded=False, policy=policy, pinned=version)
    try:
        yield upstream
    finally:
        await upstream.close()
        await reader.close()


def _name(model: str) -> str:
    return Path(model).name if Path(model).exists() else model


def _check_reachable(run: Run, version: ResourceVersion) -> None:
    uri = version.uri or ""
    if Path(uri).is_absolute() and not Path(uri).exists():
        raise ModelError(
            f"the weights of run {run.id!r} are in {uri!r}, which does not exist on this machine: start the "
            "gateway where the run is trained, or let both machines see the run's folder at the same path"
        )
