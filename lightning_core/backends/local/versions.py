"""Engines of single versions of the weights, beside a backend that trains or without one."""

from __future__ import annotations

import asyncio
import secrets
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from lightning_core.backends.chat.upstream import ChatUpstream
from lightning_core.backends.local.engine import Engine
from lightning_core.backends.local.parts import make_engine
from lightning_core.backends.local.reading import Content, read_version
from lightning_core.backends.local.tuning import tune_decoding


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How engines are made."""

    name: str
    """What the model is called."""
    context: int | None
    device: str
    dtype: str
    threads: int | None
    max_batch: int


Speed = tuple[int, torch.dtype]
"""Threads and number format of an engine."""


@dataclass(frozen=True, slots=True)
class LocalVersion:
    """One version being served (`gateway.engine_cache.VersionEngine`)."""

    upstream: ChatUpstream
    engine: Engine
    speed: Speed

    async def close(self) -> None:
        """Stop the engine."""
        await asyncio.to_thread(self.engine.close)


async def open_version(
    content: Content, version: int, settings: EngineSettings, speed: Speed | None
) -> LocalVersion:
    """Read the weights and start an engine on them. `speed` is measured if it is not known.

    Raises ModelError for content that can't be read.
    """
    loop, thread = asyncio.get_running_loop(), ThreadPoolExecutor(1, "lightning-reading")
    try:  # a thread of its own: measuring changes how many threads torch takes in it
        made = await loop.run_in_executor(thread, _make, content, version, settings, speed)
    finally:
        thread.shutdown(wait=False)
    made.engine.start()
    return made


def _make(content: Content, version: int, settings: EngineSettings, speed: Speed | None) -> LocalVersion:
    model = read_version(content, name=settings.name, context=settings.context, device=settings.device)
    if speed is None:
        speed = tune_decoding(model.network, model.context, threads=settings.threads, dtype=settings.dtype)
    engine = make_engine(model, model.network, *speed, settings.max_batch)
    engine.policy_version = version
    # two engines with one seed would sample alike, in two gateways or one after another in the same
    upstream = ChatUpstream(model.chat, engine, seed=secrets.randbits(64))
    return LocalVersion(upstream, engine, speed)
