"""A gateway that listens, in front of a scripted engine and a real store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import httpx
import openai
import pytest

from lightning_core.gateway.app import Gateway
from lightning_core.gateway.limits import LIMITS, Limits
from lightning_core.gateway.server import GatewayServer
from lightning_core.gateway.tokens import Tokens
from lightning_core.records.types import Call, Rollout, Sampling, Task
from lightning_core.stores.base import Store
from lightning_core.stores.sqlite import MemoryStore
from tests.gateway.scripted import ScriptedEngine

Said = TypeVar("Said")


@dataclass
class House:
    """A running gateway and all that a test wants to know of it."""

    engine: ScriptedEngine
    store: Store
    tokens: Tokens
    url: str = ""
    openers: list[openai.AsyncOpenAI] = field(default_factory=list)

    async def rollout(self, name: str = "r1", sampling: Sampling | None = None) -> str:
        """Start the first attempt of a new rollout; its token."""
        rollout = Rollout(
            id=name,
            run_id="run",
            task=Task(input={"q": name}),
            group_id="g",
            step=0,
            sampling=sampling or Sampling(),
        )
        await self.store.enqueue([rollout])
        attempts = await self.store.lease("worker", 1, 60.0)
        assert [attempt.rollout.id for attempt in attempts] == [name]
        return self.tokens.issue(rollout, 1)

    def client(self, token: str, *, base: str = "/v1", agent: str | None = None) -> openai.AsyncOpenAI:
        """An OpenAI client that does not retry."""
        headers = {"x-lightning-agent": agent} if agent is not None else {}
        opener = openai.AsyncOpenAI(
            base_url=self.url + base, api_key=token, max_retries=0, default_headers=headers
        )
        self.openers.append(opener)
        return opener

    async def calls(self, name: str = "r1") -> list[Call]:
        return (await self.store.get_calls([name]))[name]

    async def one_call(self, name: str = "r1") -> Call:
        """The only call of a rollout, waited for."""
        for _ in range(6000):
            if calls := await self.calls(name):
                assert len(calls) == 1
                return calls[0]
            await asyncio.sleep(0.01)
        raise AssertionError(f"rollout {name!r} has no call after a minute")


@asynccontextmanager
async def open_house(
    engine: ScriptedEngine | None = None,
    *,
    store: Store | None = None,
    agents: tuple[str, ...] | None = None,
    anonymous: bool = False,
    hosts: tuple[str, ...] = (),
    names: dict[str, str] | None = None,
    limits: Limits = LIMITS,
    also_named: str | None = None,
) -> AsyncIterator[House]:
    """Run a gateway as a test needs it."""
    house = House(engine or ScriptedEngine(), store or MemoryStore(), Tokens(b"0123456789abcdef"))
    gateway = Gateway(
        *(house.engine, house.store, house.tokens),
        agents=agents,
        anonymous=anonymous,
        hosts=hosts,
        also_named=also_named,
        names=names,
    )
    async with GatewayServer(gateway, limits=limits) as server:
        house.url = server.url
        yield house
        for opener in house.openers:
            await opener.close()


async def drain(stream: AsyncIterable[Said], chunks: list[Said]) -> None:
    """Put all that a stream says into `chunks`, up to its error if it ends in one."""
    async for chunk in stream:
        chunks.append(chunk)


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with open_house() as house:
        yield house


@pytest.fixture
async def web(house: House) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=house.url, timeout=60) as client:
        yield client
