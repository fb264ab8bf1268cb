"""What a gateway knows of a run's versions: which is the current one, and where the content of each lies.

The store is asked as seldom as that can be: when an attempt makes its first call, so that a rollout is never
answered by weights older than those there were when it was enqueued, and otherwise once a second at most.
Requests that arrive meanwhile wait for the same look.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from typing import Final

from lightning_core.errors import ApiError, NotFoundError
from lightning_core.stores.base import Store
from lightning_core.types import ResourceVersion
from lightning_core.versions import POLICY, find_current, get_version

LOOK_SECONDS: Final = 1.0
_ATTEMPTS: Final = 4096
"""Attempts that are remembered; one that is forgotten costs a look more."""

Attempt = tuple[str, int]


class Catalogue:
    """The versions of one run's weights. Belongs to the event loop that first asks it."""

    def __init__(self, store: Store, run_id: str, *, look_seconds: float = LOOK_SECONDS) -> None:
        self._store = store
        self._run_id = run_id
        self._look_seconds = look_seconds
        self._versions: list[ResourceVersion] = []
        self._began = float("-inf")
        """When the last look began."""
        self._looking = asyncio.Lock()
        self._attempts: OrderedDict[Attempt, None] = OrderedDict()
        self.looks = 0
        """How often the store was asked."""

    async def current(self, attempt: Attempt | None = None) -> ResourceVersion:
        """The current version, as an attempt's call must see it. Raises ApiError if there is none."""
        if attempt is not None and attempt not in self._attempts:
            await self.look()
            self._remember(attempt)
        else:
            await self._keep_up()
        current = find_current(self._versions)
        if current is None:
            raise ApiError(
                f"run {self._run_id!r} has no weights to serve yet; try again when its trainer has started",
                status=503,
                code="no_version",
                kind="server_error",
            )
        return current

    async def get(self, version: int) -> ResourceVersion:
        """A version with its content. Raises ApiError for one that is unknown or deleted."""
        await self._keep_up()
        if not any(known.version == version for known in self._versions):
            await self.look()
        try:
            return get_version(self._versions, version)
        except NotFoundError as error:
            raise ApiError(
                f"run {self._run_id!r} can't be answered by it: {error}", status=404, code="model_not_found"
            ) from error

    async def servable(self) -> list[int]:
        """The versions that have their content."""
        await self._keep_up()
        return [version.version for version in self._versions if version.uri is not None]

    async def look(self) -> None:
        """Know what the store knew, at the moment of this call or later."""
        asked = time.monotonic()
        async with self._looking:
            if self._began >= asked:
                return
            began = time.monotonic()
            self._versions = await self._store.list_resources(self._run_id, POLICY)
            self._began = began
            self.looks += 1

    async def _keep_up(self) -> None:
        if time.monotonic() - self._began >= self._look_seconds:
            await self.look()

    def _remember(self, attempt: Attempt) -> None:
        self._attempts[attempt] = None
        if len(self._attempts) > _ATTEMPTS:
            self._attempts.popitem(last=False)
