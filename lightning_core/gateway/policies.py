"""Several policies behind one gateway: each has engines and versions of its own, and an agent's name says
which one answers."""

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
        self._last = own
        """The policy that was asked last: the text of a token is known once a policy has answered."""

    async def open(self) -> None:
        """Open the engine of each policy's current version before a request needs it."""
        for upstream in (self.own, *self.named.values()):
            await upstream.open()

    async def chat(self, request: ChatRequest) -> Generation:
        """Start a completion by the policy that the request is for."""
        upstream = self.own if request.policy is None else self.named[request.policy]
        generation = await upstream.chat(request)
        self._last = upstream
        return generation

    async def count(self, request: ChatRequest) -> int:
        """The tokens of a prompt, which are the same for all policies."""
        return await self.own.count(request)

    def decode(self, token_id: int) -> str:
        """The text of one token, which is the same for all policies."""
        return self._last.decode(token_id)

    async def versions(self) -> list[int]:
        """Returns the versions of the run's own policy."""
        return await self.own.versions()

    async def close(self) -> None:
        """Close the engines that were opened here."""
        for upstream in (self.own, *self.named.values()):
            await upstream.close()
