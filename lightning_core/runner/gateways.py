"""Which gateway an attempt is given when gateways are remote, and whether it is still the same one.

A gateway may be killed, and another may start under its address, which has none of the calls that the first
was answering. So a gateway is known by its address and by the `instance` that it names at `/healthz`; only
one that answers with the instance of its member counts, whatever the clocks of the machines say.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol

from lightning_core.records.types import Attempt, Member
from lightning_core.runner.config import read_config
from lightning_core.stores.base import Store
from lightning_core.stores.heartbeat import living
from lightning_core.tracing.scope import Scope

log = logging.getLogger(__name__)

FRESH_SECONDS = 5.0
"""How long an answer is believed."""
RETRY_SECONDS = 0.5
"""Between two looks for a gateway while there is none."""
CONNECT_SECONDS, ANSWER_SECONDS = 3.0, 10.0


@dataclass(frozen=True, slots=True)
class GatewayAddress:
    """A gateway that answers."""

    name: str
    url: str
    """Without `/v1`."""
    instance: str
    """Which of the processes that listened there, one after the other."""


class GatewayHealth(Protocol):
    """The health check of gateways that come and go."""

    async def ready(self) -> None:
        """Wait until attempts can be begun."""

    async def lost(self, scope: Scope) -> bool:
        """Whether the gateway of this attempt is or was away, so that its failure says nothing of the app."""


class GatewayFinder:
    """Finds the gateways that the members of runs name, and believes what it found for some seconds."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._found: dict[str, tuple[float, list[GatewayAddress]]] = {}
        """The gateways that answered, by run, and until when that is believed."""

    async def answering(self, run_id: str) -> list[GatewayAddress]:
        """The gateways of a run that answer; one that comes back is seen at once."""
        now = time.monotonic()
        self._found = {run: found for run, found in self._found.items() if found[0] > now}
        if run_id not in self._found:
            found = await answering(await self._members(run_id))
            if not found:
                return []
            self._found[run_id] = time.monotonic() + FRESH_SECONDS, found
        return self._found[run_id][1]

    async def away(self, run_id: str) -> bool:
        """Whether the run has gateways, or will have, as a trainer opened it, and none of them answers: an
        app that is run now could only fail."""
        if await self.answering(run_id):
            return False
        run = await self._store.find_run(run_id)
        return (run is not None and read_config(run) is not None) or bool(await self._members(run_id))

    async def lost(self, run_id: str, url: str, instance: str | None) -> bool:
        """Whether no gateway answers there, or another one than `instance`: the failure of an attempt that
        was sent there says nothing of the app then."""
        if await find_instance(url) == instance:
            return False
        self._found.pop(run_id, None)
        return True

    async def _members(self, run_id: str) -> list[Member]:
        return gateways_among(await self._store.list_members(run_id))


class Gateways:
    """The gateways of one run, for its runner."""

    def __init__(self, store: Store, run_id: str, make_scope: Callable[[Attempt, str, str], Scope]) -> None:
        """`make_scope(attempt, url, instance)` is the scope of an attempt at a gateway."""
        self._finder = GatewayFinder(store)
        self._run_id = run_id
        self._make_scope = make_scope
        self._found: list[GatewayAddress] = []

    def scope_for(self, attempt: Attempt) -> Scope:
        """The scope of an attempt, once `ready`. One rollout keeps to one gateway while that is there."""
        chosen = choose(self._found, attempt.rollout.id)
        return self._make_scope(attempt, chosen.url, chosen.instance)

    async def ready(self) -> None:
        """Wait until a gateway answers."""
        told = False
        while not (found := await self._finder.answering(self._run_id)):
            if not told:
                told = True
                log.warning("run %s: no gateway answers; waiting for one", self._run_id)
            await asyncio.sleep(RETRY_SECONDS)
        self._found = found

    async def lost(self, scope: Scope) -> bool:
        """Whether the attempt's gateway does not answer, or is another one than when the attempt began."""
        return await self._finder.lost(self._run_id, scope.gateway_url, scope.gateway_instance)


def gateways_among(members: Sequence[Member]) -> list[Member]:
    """Returns the living gateways among the members, or else all, in case a clock is wrong. A request to a
    dead one on a machine that is gone takes seconds."""
    found = [member for member in members if member.role == "gateway" and member.url]
    return living(found) or found


async def answering(members: Sequence[Member]) -> list[GatewayAddress]:
    """The gateways that answer now, and are those that their members speak of."""
    answers = await asyncio.gather(*(find_instance(member.url or "") for member in members))
    return [
        GatewayAddress(member.name, member.url or "", said)
        for member, said in zip(members, answers, strict=True)
        if said and member.data.get("instance") == said
    ]


def choose(gateways: Sequence[GatewayAddress], rollout_id: str) -> GatewayAddress:
    """The gateway of a rollout: the same one while it is there, and others for other rollouts."""
    return max(gateways, key=lambda one: blake2b(f"{one.name} {rollout_id}".encode()).digest())


async def find_instance(url: str) -> str | None:
    """Which gateway answers at this address; None if none does."""
    import httpx  # 0.1 s, and only gateways elsewhere are asked

    try:
        limits = httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS)
        # certificates are read only where they are needed: that takes 30 ms
        async with httpx.AsyncClient(timeout=limits, verify=url.startswith("https:")) as client:
            answer = await client.get(f"{url}/healthz")
            said = answer.json() if answer.is_success else {}
    except (httpx.HTTPError, httpx.InvalidURL, ValueError):
        return None
    instance = said.get("instance") if isinstance(said, dict) else None
    return instance if isinstance(instance, str) else None
