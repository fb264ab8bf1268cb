"""Who may go in while weights are about to change, and who must have come out before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from lightning_core.backends.chat.completion import Request


class Door:
    """Open until it is held. Belongs to one event loop."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._inside = 0
        self._last = False

    @property
    def held(self) -> bool:
        """Whether it is shut."""
        return not self._open.is_set()

    @property
    def last(self) -> bool:
        """Whether it is shut and the present weights will be nowhere again but where they are now."""
        return self.held and self._last

    @asynccontextmanager
    async def inside(self, request: Request) -> AsyncIterator[None]:
        """Wait until it is open. A request of which a choice is being answered already does not wait: its
        choices are answered by one version."""
        while request.policy_version is None and self.held:
            await self.opened()
        self._inside += 1
        self._empty.clear()
        try:
            yield
        finally:
            self._inside -= 1
            if not self._inside:
                self._empty.set()

    async def hold(self, *, last: bool = False) -> None:
        """Shut it; returns once nobody is inside."""
        self._last = last
        self._open.clear()
        await self._empty.wait()

    async def opened(self) -> None:
        """Wait until it is open."""
        await self._open.wait()

    async def release(self) -> None:
        """Open it."""
        self._open.set()
