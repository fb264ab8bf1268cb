"""Heartbeats: each process that plays a role in a run is a member of it in the store, and renews that.

The store is all that the roles share, so it is also where they find one another: workers find the gateways
there. A member that died stays listed with an old `seen_at`; one that starts again under its name takes its
place, and one that ends cleanly removes itself.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Self

from pydantic import JsonValue

from lightning_core.errors import ConfigError, StoreError
from lightning_core.records.types import Member, Role
from lightning_core.stores.base import Store

log = logging.getLogger(__name__)

BEAT_SECONDS = 3.0
"""Between two heartbeats."""
MISSING_SECONDS = 20.0
"""After so long without one a member counts as dead. Clocks of machines may differ by most of it."""


class Heartbeat:
    """`async with Heartbeat(store, member)`: the member is listed, and lives, until the block ends."""

    def __init__(self, store: Store, member: Member) -> None:
        self._store = store
        self._member = member
        self._leaving = asyncio.Event()
        self._beating: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._store.put_member(self._member)
        self._beating = asyncio.create_task(self._beat(), name=f"heartbeat of {self._member.name}")
        return self

    async def __aexit__(self, *exc: object) -> None:
        member = self._member
        self._leaving.set()
        if self._beating is not None:
            await self._beating  # not cancelled: the store might carry out the last one after the removal
        try:
            await self._store.remove_member(member.run_id, member.role, member.name)
        except StoreError as error:
            log.warning("%s %s stays listed: %s", member.role, member.name, error)

    async def _beat(self) -> None:
        while not await self._left():
            try:
                await self._store.put_member(self._now())
            except Exception as error:  # whatever it was, the next one is due all the same
                log.warning("a heartbeat failed, the next one may do: %r", error)

    async def _left(self) -> bool:
        """Whether it is time to leave, once that or the next heartbeat is due."""
        with suppress(TimeoutError):
            async with asyncio.timeout(BEAT_SECONDS):
                await self._leaving.wait()
        return self._leaving.is_set()

    def _now(self) -> Member:
        return self._member.model_copy(update={"seen_at": time.time()})


def make_member(run_id: str, role: Role, name: str, *, url: str | None = None, **data: JsonValue) -> Member:
    """This process as a member; it says which process of which host it is, and `data`."""
    place: dict[str, JsonValue] = {"host": socket.gethostname(), "pid": os.getpid()}
    return Member(run_id=run_id, role=role, name=name, url=url, data={**place, **data})


async def find_living(store: Store, run_id: str, role: Role) -> list[Member]:
    """The members of a role with a heartbeat lately."""
    return living([member for member in await store.list_members(run_id) if member.role == role])


async def check_not_trained(store: Store, run_id: str) -> None:
    """Raise ConfigError while a trainer is at work: its next update would take the place of a choice."""
    if await find_living(store, run_id, "trainer"):
        raise ConfigError(
            f"run {run_id!r} is being trained, and its next update would be current again at once: end the "
            "training first (Ctrl-C; one that was killed counts as ended after 20 seconds)"
        )


def living(members: Sequence[Member]) -> list[Member]:
    """Returns the members with a recent heartbeat."""
    since = time.time() - MISSING_SECONDS
    return [member for member in members if member.seen_at > since]
