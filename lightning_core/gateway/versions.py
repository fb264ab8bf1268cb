"""Which version of a run's weights answers a request, and an upstream that serves several at once.

A trained agent is answered by the version that its rollout is pinned to, or by the current one: its token
holds which, whatever model its app names. Other callers may ask for a version by the model's name,
`NAME@VERSION`.

Beside a trainer the current version is the trainer's own engine. Any other, and without a trainer the
current one too, gets an engine of its own, made from the content in the version's record.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Final, Protocol, runtime_checkable

from lightning_core.dialects.strict import short
from lightning_core.dialects.upstream import ChatRequest, Delta, Generation, Upstream
from lightning_core.errors import ApiError, ModelError, NotFoundError
from lightning_core.gateway.access import Caller
from lightning_core.gateway.engine_cache import EngineCache, VersionEngine
from lightning_core.records.types import ResourceVersion
from lightning_core.stores.base import Store
from lightning_core.stores.versions import POLICY, find_current, get_version, read_number

ENGINES: Final = 2
"""Open at once: the version before can answer what it has begun while the next one is opened, and two can be
compared."""

OpenEngine = Callable[[str, int], Awaitable[VersionEngine]]
"""Makes an engine from a version's content (its `uri`) and number; raises ModelError if that can't be
read."""
LOOK_SECONDS: Final = 1.0
_ATTEMPTS: Final = 4096
"""Attempts that are remembered; one that is forgotten costs a look more."""

Attempt = tuple[str, int]


def version_name(model: str, version: int) -> str:
    """How a client asks for one version of a model."""
    return f"{model}@{version}"


def pin(
    request: ChatRequest, caller: Caller, model: str, served: str, policies: Collection[str] = ()
) -> ChatRequest:
    """The request with the policy and version that are to answer it, the attempt that it belongs to, and what
    its random numbers follow from.

    `model` is what the client calls it, `served` the name it is served under; `policies` are served under
    names of their own. Raises ApiError for a version that is no number, and if a trained agent names another
    than its rollout's.
    """
    named, asked = _asked(model, served, policies)
    policy, version = caller.policy if caller.trained else named, caller.policy_version
    request = replace(request, trained=caller.trained, policy=policy)
    if version is not None and policy is not None:
        raise ApiError(
            f"the rollout is pinned to version {version} of the run's own policy; policy {policy!r} answers "
            f"agent {caller.agent!r} and has versions of its own: enqueue it without a version",
            code="other_policy",
        )
    if asked is not None and caller.trained and (named, asked) != (policy, version):
        pinned = "the current version" if version is None else f"version {version}"
        raise ApiError(
            f"agent {caller.agent!r} is trained, so its rollout says which weights answer it, {pinned}, and "
            f"not the model name {model!r}; name another model, or enqueue the rollout with that version",
            code="other_version",
            param="model",
        )
    if caller.rollout_id is None or caller.attempt is None:
        return replace(request, policy_version=asked)
    own = caller.rollout_id, caller.attempt
    # the 1 stands where the attempt stood: runs that were published draw the same numbers as before
    origin = None if caller.seed is None else f"{caller.seed}/1/{caller.agent}"
    return replace(request, policy_version=version if asked is None else asked, attempt=own, origin=origin)


def _asked(model: str, served: str, policies: Collection[str]) -> tuple[str | None, int | None]:
    """The named policy and the version that a model's name asks for."""
    if model in policies:
        return model, None
    name, mark, version = model.rpartition("@")
    if not mark or name not in (served, POLICY, *policies):
        return None, None
    number = read_number(version)
    if number is None:
        raise ApiError(
            f"{short(model)} is not a version of {served!r}: give its number in the digits 0 to 9, such as "
            f"{version_name(served, 3)!r}",
            status=404,
            code="model_not_found",
            param="model",
        )
    return (name if name in policies else None), number


class VersionRegistry:
    """The versions of one run's weights. Belongs to the event loop that first asks it.

    It reads the store seldom: when an attempt makes its first call, so that a rollout is never answered by
    weights older than the current ones of when it was enqueued, and otherwise once a second at most. Requests
    that arrive meanwhile wait for the same look.
    """

    def __init__(
        self,
        store: Store,
        run_id: str,
        *,
        name: str = POLICY,
        pinned: int | None = None,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        """`name`: that of the versions in the store; `pinned`: the version that counts as the current one,
        whichever is chosen."""
        self._name = name
        self._store = store
        self._run_id = run_id
        self._pinned = pinned
        self._look_seconds = look_seconds
        self._versions: list[ResourceVersion] = []
        self._began = float("-inf")
        """When the last look began."""
        self._looking = asyncio.Lock()
        self._attempts: OrderedDict[Attempt, None] = OrderedDict()
        self.looks = 0
        """How often the store was read."""

    async def current(self, attempt: Attempt | None = None) -> ResourceVersion:
        """The current version, as an attempt's call must see it. Raises ApiError if there is none."""
        if self._pinned is not None:
            return await self.get(self._pinned)
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
            self._versions = await self._store.list_resources(self._run_id, self._name)
            self._began = began
            self.looks += 1

    async def _keep_up(self) -> None:
        if time.monotonic() - self._began >= self._look_seconds:
            await self.look()

    def _remember(self, attempt: Attempt) -> None:
        self._attempts[attempt] = None
        if len(self._attempts) > _ATTEMPTS:
            self._attempts.popitem(last=False)


@runtime_checkable
class Versioned(Protocol):
    """An upstream that serves several versions."""

    async def versions(self) -> list[int]:
        """Returns the versions that can be asked for."""


@dataclass(frozen=True, slots=True)
class Embedded:
    """The engine of the trainer in this process, which always has the newest weights."""

    upstream: Upstream
    version: Callable[[], int]


class VersionedUpstream:
    """Serves the versions in a registry (`upstream.Upstream`)."""

    def __init__(
        self,
        model_name: str,
        registry: VersionRegistry,
        open_engine: OpenEngine,
        *,
        embedded: Embedded | None = None,
        engines: int = ENGINES,
    ) -> None:
        """`engines`: how many may be open at once, that of a trainer not counted."""
        self.model_name = model_name
        self._registry = registry
        self._open_engine = open_engine
        self._embedded = embedded
        self._cache = EngineCache(self._open, engines)
        self._decode = embedded.upstream.decode if embedded is not None else None

    async def open(self) -> None:
        """Open the engine of the current version before a request needs it. Raises ModelError if its weights
        can't be read."""
        async with self._cache.engine((await self._registry.current()).version):
            pass

    async def chat(self, request: ChatRequest) -> Generation:
        """Start a completion by the version asked for, or the current one. Raises ApiError for a version
        that is unknown or deleted; waits while its weights are read."""
        asked, embedded = request.policy_version, self._embedded
        if asked is None:
            if embedded is not None:
                return await embedded.upstream.chat(request)
            return await self._from_cache(request, (await self._registry.current(request.attempt)).version)
        if embedded is None or asked != embedded.version():
            return await self._from_cache(request, asked)
        begun = await embedded.upstream.chat(request)
        return _Verified(begun, asked, lambda: self._from_cache(request, asked))

    async def count(self, request: ChatRequest) -> int:
        """The tokens of a prompt, which are the same in all versions."""
        if self._embedded is not None:
            return await self._embedded.upstream.count(request)
        version = request.policy_version
        if version is None:
            version = (await self._registry.current(request.attempt)).version
        async with self._cache.engine(version) as engine:
            return await engine.upstream.count(request)

    def decode(self, token_id: int) -> str:
        """The text of one token, which is the same in all versions; after the first completion."""
        assert self._decode is not None
        return self._decode(token_id)

    async def versions(self) -> list[int]:
        """Returns the versions that can be asked for by number."""
        servable = set(await self._registry.servable())
        return sorted(servable | ({self._embedded.version()} if self._embedded is not None else set()))

    @property
    def opened(self) -> list[int]:
        """The versions that have an engine of their own now."""
        return self._cache.open

    async def close(self) -> None:
        """Close the engines that were opened here. Call once the gateway has stopped."""
        await self._cache.close()

    async def _from_cache(self, request: ChatRequest, version: int) -> Generation:
        async with AsyncExitStack() as stack:
            engine = await stack.enter_async_context(self._cache.engine(version))
            self._decode = engine.upstream.decode
            generation = await engine.upstream.chat(request)
            return _Kept(generation, stack.pop_all())

    async def _open(self, version: int) -> VersionEngine:
        record = await self._registry.get(version)
        assert record.uri is not None
        try:
            return await self._open_engine(record.uri, version)
        except ModelError:
            await self._registry.look()  # it may have been moved, or deleted, while it was read
            again = await self._registry.get(version)
            if again.uri is None or again.uri == record.uri:
                raise
            return await self._open_engine(again.uri, version)


class _Kept:
    """A completion that keeps its engine open until it ends."""

    def __init__(self, generation: Generation, engine: AsyncExitStack) -> None:
        self._generation = generation
        self._engine = engine
        self.prompt_ids, self.grammar = generation.prompt_ids, generation.grammar

    @property
    def policy_version(self) -> int | None:
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
    """A completion begun by the trainer's engine, and begun again by another if new weights came in
    between."""

    def __init__(self, begun: Generation, version: int, restart: Callable[[], Awaitable[Generation]]) -> None:
        self._generation = begun
        self._version = version
        self._restart = restart
        self.prompt_ids, self.grammar = begun.prompt_ids, begun.grammar

    @property
    def policy_version(self) -> int | None:
        return self._generation.policy_version

    async def __aiter__(self) -> AsyncIterator[Delta]:
        async for delta in self._generation:
            if self.policy_version != self._version:
                break
            yield delta
        else:
            return
        await self._generation.aclose()
        self._generation = await self._restart()
        async for delta in self._generation:
            yield delta

    async def aclose(self) -> None:
        await self._generation.aclose()
