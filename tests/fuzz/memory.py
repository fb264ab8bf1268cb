"""Whether the server's memory is level, once what it may keep is filled."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Final

from benchmarks.tiny_server import TinyServer
from lightning_core.plugins import load_plugins
from lightning_core.records.types import Sampling
from lightning_core.trainer.parts import open_store
from tests.fuzz.desk import Desk
from tests.fuzz.faults import Fault
from tests.fuzz.wire import ask

_PROMPTS: Final = 72
_TOKENS: Final = 2_000
"""The engine keeps the prefixes of 131,072 tokens for reuse: more are sent before anything is measured."""
_WARM: Final = 0.5
"""Share of the cases after which the memory is measured."""


def fill_memory(server: TinyServer) -> None:
    """Let the engine fill what it keeps of prompts."""
    asyncio.run(_fill(server))


async def _fill(server: TinyServer) -> None:
    draw = random.Random(0)
    async with open_store(server.store_url, load_plugins()) as store:
        desk = Desk(store)
        held = await desk.begin("warm", group="warm", sampling=Sampling())
        headers = [("authorization", f"Bearer {held.token}".encode()), ("content-type", b"application/json")]

        async def one(_: int) -> None:
            prompt = [draw.randrange(3, 800) for _ in range(_TOKENS)]
            body = json.dumps({"prompt": prompt, "max_tokens": 2}).encode()
            await ask(server.url, "POST", "/v1/completions", headers, body)

        await asyncio.gather(*map(one, range(_PROMPTS)))
        await desk.finish(held, 0.0)


def slope(points: list[tuple[int, int]]) -> float:
    """Returns the slope of the line through the points with the least squared error."""
    mid_x, mid_y = (sum(each) / len(points) for each in zip(*points, strict=True))
    spread = sum((x - mid_x) ** 2 for x, _ in points)
    return sum((x - mid_x) * (y - mid_y) for x, y in points) / spread if spread else 0.0


def check_memory(memory: list[tuple[int, int]], most: float) -> Fault | None:
    """The fault that each case adds more than so many bytes, if it does."""
    warm = [point for point in memory if point[0] >= _WARM * memory[-1][0]]
    grown = slope(warm)
    if grown <= most:
        return None
    return Fault(
        "memory", f"each case of the last {1 - _WARM:.0%} adds {grown:.0f} bytes, more than {most:.0f}"
    )
