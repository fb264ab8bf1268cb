"""Engines of single versions, opened when they are asked for and closed when others need their slot.

At most `limit` are open. The one that was longest without a request makes room, once the replies that it has
in flight have ended: no reply is ever cut, so a request may have to wait for one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from lightning_core.dialects.upstream import Upstream

log = logging.getLogger(__name__)


class VersionEngine(Protocol):
    """An engine that serves one version of the weights and no other."""

    @property
    def upstream(self) -> Upstream: ...
    async def close(self) -> None:
        """Free what it holds; a second time does nothing. From any event loop."""


@dataclass(eq=False, slots=True)
class _Slot:
    """One open engine, or one that is being opened or closed."""

    opening: asyncio.Task[VersionEngine]
    busy: int = 0
    """Replies in flight, and requests that wait for the opening."""
    leaving: bool = False
    """Whether it takes no more requests, to make room."""


class EngineCache:
    """The open engines, by version. Belongs to the event loop that first asks it."""

    def __init__(self, open_engine: Callable[[int], Awaitable[VersionEngine]], limit: int) -> None:
        self._open_engine = open_engine
        self._limit = limit
        self._slots: OrderedDict[int, _Slot] = OrderedDict()
        """The one that was asked for last is last."""
        self._changed = asyncio.Condition()
        self._closings: set[asyncio.Task[None]] = set()

    @property
    def open(self) -> list[int]:
        """Versions that have an engine, by when they were last asked for."""
        return list(self._slots)

    @asynccontextmanager
    async def engine(self, version: int) -> AsyncIterator[VersionEngine]:
        """The engine of a version, which stays open in this block. What its opening raised is raised here."""
        slot = await self._take(version)
        try:
            yield await asyncio.shield(slot.opening)
        finally:
            slot.busy -= 1
            self._sweep()

    async def close(self) -> None:
        """Close all engines; replies in flight end with an error. From any loop, once the first has ended."""
        slots, self._slots = self._slots, OrderedDict()
        for slot in slots.values():
            if slot.opening.done() and not slot.opening.cancelled() and not slot.opening.exception():
                await slot.opening.result().close()

    async def _take(self, version: int) -> _Slot:
        async with self._changed:
            while True:
                slot = self._slots.get(version)
                if slot is None and len(self._slots) < self._limit:
                    opening = asyncio.create_task(self._open(version))
                    opening.add_done_callback(_heard)
                    slot = self._slots[version] = _Slot(opening)
                if slot is not None and not slot.leaving:
                    slot.busy += 1
                    self._slots.move_to_end(version)
                    return slot
                self._make_room()
                await self._changed.wait()

    async def _open(self, version: int) -> VersionEngine:
        try:
            return await self._open_engine(version)
        except BaseException:
            self._slots.pop(version, None)
            await self._tell()
            raise

    def _make_room(self) -> None:
        """Ask the engine that was idle longest to leave, unless one is leaving already."""
        if not any(slot.leaving for slot in self._slots.values()):
            next(iter(self._slots.values())).leaving = True
            self._sweep()

    def _sweep(self) -> None:
        """Close what is to leave and has nothing to do."""
        for version, slot in list(self._slots.items()):
            if slot.leaving and not slot.busy and slot.opening.done():
                slot.busy = 1  # once
                closing = asyncio.create_task(self._close(version, slot))
                self._closings.add(closing)
                closing.add_done_callback(self._closings.discard)
                closing.add_done_callback(_report)

    async def _close(self, version: int, slot: _Slot) -> None:
        try:
            await slot.opening.result().close()
        finally:
            if self._slots.get(version) is slot:
                del self._slots[version]
            await self._tell()

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()


def _heard(opening: asyncio.Task[VersionEngine]) -> None:
    """Take the exception, so that asyncio does not log one that no request waits for."""
    if not opening.cancelled():
        opening.exception()


def _report(closing: asyncio.Task[None]) -> None:
    if not closing.cancelled() and (error := closing.exception()) is not None:
        log.error("an engine could not be closed: %s", error)
