"""An upstream that answers by any version of a run's weights, several at once.
 Beside a trainer the current version is the trainer's own engine. Any other, and without a trainer the
current one too, gets an engine of its own, made from what the version's record says of its content.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

from lightning_core.errors import ModelError
from lightning_core.gateway.catalogue import Catalogue
from lightning_core.gateway.shelf import Shelf, VersionEngine
from lightning_core.upstream import ChatRequest, Delta, Generation, Upstream

ENGINES: Final = 2
"""Open at once: the version before can answer what it has begun while the next one is opened, and two can be
compared."""

OpenEngine = Callable[[str, int], Awaitable[VersionEngine]]
"""Makes an engine from a version's content (its `uri`) and number; raises ModelError if that can't be
read."""


@runtime_checkable
class Versioned(Protocol):
    """What an upstream that knows of versions can say beside serving."""

    async def versions(self) -> list[int]:
        """Those that can be asked for."""


@dataclass(frozen=True, slots=True)
class Embedded:
    """The engine of the trainer in this process, which always has the newest weights."""

    upstream: Upstream
    version: Callable[[], int]


class VersionedUpstream:
    """Serves the versions in a catalogue (`upstream.Upstream`)."""

    def __init__(
        self,
        model_name: str,
        catalogue: Catalogue,
        open_engine: OpenEngine,
        *,
        embedded: Embedded | None = None,
        engines: int = ENGINES,
    ) -> None:
        """`engines`: how many may be open at once, that of a trainer not counted."""
        self.model_name = model_name
        self._catalogue = catalogue
        self._open_engine = open_engine
        self._embedded = embedded
        self._shelf = Shelf(self._open, engines)
        self._decode = embedded.upstream.decode if embedded is not None else None

    async def chat(self, request: ChatRequest) -> Generation:
        """Start a completion by the version asked for, or the current one. Raises ApiError for a version
        that is unknown or deleted; waits while its weights are read."""
        asked, embedded = request.policy_version, self._embedded
        if asked is None:
            if embedded is not None:
                return await embedded.upstream.chat(request)
            return await self._from_shelf(request, (await self._catalogue.current(request.attempt)).version)
        if embedded is None or asked != embedded.version():
            return await self._from_shelf(request, asked)
        begun = await embedded.upstream.chat(request)
        return _Verified(begun, asked, lambda: self._from_shelf(request, asked))

    def decode(self, token_id: int) -> str:
        """The text of one token, which is the same in all versions; after the first completion."""
        assert self._decode is not None
        return self._decode(token_id)

    async def versions(self) -> list[int]:
        """Those that can be asked for by number."""
        servable = set(await self._catalogue.servable())
        return sorted(servable | ({self._embedded.version()} if self._embedded is not None else set()))

    @property
    def opened(self) -> list[int]:
        """The versions that have an engine of their own now."""
        return self._shelf.open

    async def close(self) -> None:
        """Close the engines that were opened here. Call once the gateway has stopped."""
        await self._shelf.close()

    async def _from_shelf(self, request: ChatRequest, version: int) -> Generation:
        async with AsyncExitStack() as stack:
            engine = await stack.enter_async_context(self._shelf.engine(version))
            self._decode = engine.upstream.decode
            generation = await engine.upstream.chat(request)
            return _Kept(generation, stack.pop_all())

    async def _open(self, version: int) -> VersionEngine:
        record = await self._catalogue.get(version)
        assert record.uri is not None
        try:
            return await self._open_engine(record.uri, version)
        except ModelError:
            await self._catalogue.look()  # it may have been moved, or deleted, while it was read
            again = await self._catalogue.get(version)
            if again.uri is None or again.uri == record.uri:
                raise
            return await self._open_engine(again.uri, version)


class _Kept:
    """A completion that keeps its engine open until it ends."""

    def __init__(self, generation: Generation, engine: AsyncExitStack) -> None:
        self._generation = generation
        self._engine = engine
        self.prompt_ids = generation.prompt_ids

    @property
    def policy_version(self) -> int:
        return self._generation.policy_version

    async def __aiter__(self) -> AsyncIterator[Delta]:
        async for delta in self._generation:
            yield delta

    async def aclose(self) -> None:
        try:
            await self._generation.aclose()
        finally:
            await self._engine.aclose()


class _Verified:
    """A completion begun by the trainer's engine, and begun anew by another if new weights came in
    between."""

    def __init__(self, begun: Generation, version: int, anew: Callable[[], Awaitable[Generation]]) -> None:
        self._generation = begun
        self._version = version
        self._anew = anew
        self.prompt_ids = begun.prompt_ids

    @property
    def policy_version(self) -> int:
        return self._generation.policy_version

    async def __aiter__(self) -> AsyncIterator[Delta]:
        async for delta in self._generation:
            if self.policy_version != self._version:
                break
            yield delta
        else:
            return
        await self._generation.aclose()
        self._generation = await self._anew()
        async for delta in self._generation:
            yield delta

    async def aclose(self) -> None:
        await self._generation.aclose()
