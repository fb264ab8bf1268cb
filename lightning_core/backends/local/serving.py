"""The engine of a started backend: how it serves the policy and takes new weights."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

import torch

from lightning_core.backends.local.engine import Engine
from lightning_core.backends.serving.upstream import ChatUpstream


class Serving(Protocol):
    """An engine with a copy of the weights."""

    @property
    def upstream(self) -> ChatUpstream: ...

    async def start(self) -> None: ...
    async def close(self) -> None:
        """Stop serving; replies in flight end with an error."""

    async def hold(self) -> None:
        """Keep new requests waiting; returns once those in flight have ended."""

    async def release(self) -> None:
        """Serve again what `hold` kept waiting, unless it sleeps."""

    async def sleep(self) -> None:
        """Hold, and free memory, until `wake` or `refresh`."""

    async def wake(self) -> None:
        """Serve with the weights as they were."""

    async def refresh(self, weights: Mapping[str, torch.Tensor], policy_version: int) -> None:
        """Answer with new weights, by their names in the network's `state_dict`. Call while held."""


class TorchServing:
    """The engine in this process. It never sleeps."""

    def __init__(self, engine: Engine, upstream: ChatUpstream) -> None:
        self.engine, self.upstream = engine, upstream

    async def start(self) -> None:
        self.engine.start()

    async def close(self) -> None:
        """Stop the engine's thread."""
        await asyncio.to_thread(self.engine.close)

    async def hold(self) -> None:
        """As `Engine.hold`."""
        await asyncio.wrap_future(self.engine.hold())

    async def release(self) -> None:
        """As `Engine.release`."""
        self.engine.release()

    async def sleep(self) -> None:
        """Nothing is freed."""

    async def wake(self) -> None:
        """Nothing was freed."""

    async def refresh(self, weights: Mapping[str, torch.Tensor], policy_version: int) -> None:
        """As `Engine.refresh`."""
        await asyncio.wrap_future(self.engine.refresh(weights, policy_version))
