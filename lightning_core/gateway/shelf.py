"""Engines of single versions, opened when they are asked for and closed when others need their place.

At most `limit` are open. The one that was longest without a request makes room, once the replies that it has
under way have ended: no reply is ever cut, so a request may have to wait for one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from lightning_core.upstream import Upstream

log = logging.getLogger(__name__)


class VersionEngine(Protocol):
    """An engine that serves one version of the weights and no other."""

    @property
    def upstream(self) -> Upstream: ...
    async def close(self) -> None:
        """Free what it holds; a second time does nothing. From any event loop."""


@dataclass(eq=False, slots=True)
class _Place:
    """One open engine, or one that is being opened or closed."""

    opening: asyncio.Task[VersionEngine]
    busy: int = 0
    """Replies under way, and requests that wait for the opening."""
    leaving: bool = False
    """Whether it takes no more requests, to make room."""


class Shelf:
    """The open engines, by version. Belongs to the event loop that first asks it."""

    def __init__(self, open_engine: Callable[[int], Awaitable[VersionEngine]], limit: int) -> None:
        self._open_engine = open_engine
        self._limit = limit
        self._places: OrderedDict[int, _Place] = OrderedDict()
        """The one that was asked for last is last."""
        self._changed = asyncio.Condition()
        self._closings: set[asyncio.Task[None]] = set()

    @property
    def open(self) -> list[int]:
        """Versions that have an engine, by when they were last asked for."""
        return list(self._places)

    @asynccontextmanager
    async def engine(self, version: int) -> AsyncIterator[VersionEngine]:
        """The engine of a version, which stays open in this block. What its opening raised is raised here."""
        place = await self._take(version)
        try:
            yield await asyncio.shield(place.opening)
        finally:
            place.busy -= 1
            self._sweep()

    async def close(self) -> None:
        """Close all engines; replies under way end with an error. From any loop, once the first has ended."""
        places, self._places = self._places, OrderedDict()
        for place in places.values():
            if place.opening.done() and not place.opening.cancelled() and not place.opening.exception():
                await place.opening.result().close()

    async def _take(self, version: int) -> _Place:
        async with self._changed:
            while True:
                place = self._places.get(version)
                if place is None and len(self._places) < self._limit:
                    opening = asyncio.create_task(self._open(version))
                    opening.add_done_callback(_heard)
                    place = self._places[version] = _Place(opening)
                if place is not None and not place.leaving:
                    place.busy += 1
                    self._places.move_to_end(version)
                    return place
                self._make_room()
                await self._changed.wait()

    async def _open(self, version: int) -> VersionEngine:
        try:
            return await self._open_engine(version)
        except BaseException:
            self._places.pop(version, None)
            await self._tell()
            raise

    def _make_room(self) -> None:
        """Ask the engine that was idle longest to leave, unless one is leaving already."""
        if not any(place.leaving for place in self._places.values()):
            next(iter(self._places.values())).leaving = True
            self._sweep()

    def _sweep(self) -> None:
        """Close what is to leave and has nothing to do."""
        for version, place in list(self._places.items()):
            if place.leaving and not place.busy and place.opening.done():
                place.busy = 1  # once
                closing = asyncio.create_task(self._close(version, place))
                self._closings.add(closing)
                closing.add_done_callback(self._closings.discard)
                closing.add_done_callback(_report)

    async def _close(self, version: int, place: _Place) -> None:
        try:
            await place.opening.result().close()
        finally:
            if self._places.get(version) is place:
                del self._places[version]
            await self._tell()

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()


def _heard(opening: asyncio.Task[VersionEngine]) -> None:
    """Whoever waits is told of a failure; that nobody waits any more is no failure of its own."""
    if not opening.cancelled():
        opening.exception()


def _report(closing: asyncio.Task[None]) -> None:
    if not closing.cancelled() and (error := closing.exception()) is not None:
        log.error("an engine could not be closed: %s", error)
