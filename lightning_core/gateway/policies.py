"""Several policies behind one gateway: each has engines and versions of its own, and may have a model of its
own. An agent's name says which one answers."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from lightning_core.dialects.upstream import ChatRequest, Generation
from lightning_core.gateway.versions import VersionedUpstream


class PolicyRouter:
    """Serves a run's own policy and its named ones (`upstream.Upstream`)."""

    def __init__(self, own: VersionedUpstream, named: Mapping[str, VersionedUpstream]) -> None:
        self.model_name = own.model_name
        self.own = own
        self.named: Mapping[str, VersionedUpstream] = MappingProxyType(dict(named))

    async def open(self) -> None:
        """Open the engine of each policy's current version before a request needs it."""
        for upstream in (self.own, *self.named.values()):
            await upstream.open()

    async def chat(self, request: ChatRequest) -> Generation:
        """Start a completion by the policy that the request is for."""
        return await self._find(request).chat(request)

    async def count(self, request: ChatRequest) -> int:
        """The tokens of a prompt, as the policy that the request is for would read it."""
        return await self._find(request).count(request)

    def decode(self, token_id: int) -> str:
        """The text of one token of the run's own policy; each of `named` has its own."""
        return self.own.decode(token_id)

    def _find(self, request: ChatRequest) -> VersionedUpstream:
        return self.own if request.policy is None else self.named[request.policy]

    async def versions(self) -> list[int]:
        """Returns the versions of the run's own policy."""
        return await self.own.versions()

    async def close(self) -> None:
        """Close the engines that were opened here."""
        for upstream in (self.own, *self.named.values()):
            await upstream.close()
