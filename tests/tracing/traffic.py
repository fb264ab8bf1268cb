"""Calls from many rollouts at once, by every road an app has: threads, asyncio, streams of both.

Each call's prompt says who makes it (see `truth`), so whoever receives the calls, a test server or the
gateway, can be checked with `mistakes`. Clients are shared by all rollouts and name no endpoint.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from openai import AsyncOpenAI, DefaultAsyncHttpxClient, DefaultHttpxClient, OpenAI

from lightning_core.testing.truth import mark
from lightning_core.tracing.scope import Scope, agent, rollout_scope

AGENTS = ("planner", "write query", "relecteur-éà", "检查/员")
_CLIENTS = 4


@dataclass(frozen=True, slots=True)
class Clients:
    sync: OpenAI
    aio: AsyncOpenAI


@asynccontextmanager
async def open_clients() -> AsyncIterator[Clients]:
    """One sync and one async client, without a limit on connections."""
    async with AsyncExitStack() as stack:
        http = stack.enter_context(DefaultHttpxClient(limits=_unlimited(DefaultHttpxClient), verify=False))
        ahttp = DefaultAsyncHttpxClient(limits=_unlimited(DefaultAsyncHttpxClient), verify=False)
        await stack.enter_async_context(ahttp)
        yield Clients(
            OpenAI(api_key="none", http_client=http, timeout=300),
            AsyncOpenAI(api_key="none", http_client=ahttp, timeout=300),
        )


def _unlimited(client: type) -> Any:
    """The `Limits` of the HTTP library that this openai is built on (httpx or httpx2)."""
    library = __import__(next(base.__module__ for base in client.__mro__[1:]).partition(".")[0])
    return library.Limits(max_connections=None, max_keepalive_connections=None)


async def send(scope_for: Callable[[str], Scope], rollouts: int, calls: int, **marks: object) -> int:
    """Let every rollout make `calls` calls, all at once; returns how many were made."""
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(open_clients()) for _ in range(_CLIENTS)]
        roads = itertools.cycle(itertools.product((_threads, _tasks), (False, True)))
        await asyncio.gather(
            *(
                road(clients[index // 4 % _CLIENTS], scope_for(f"rollout-{index}"), calls, stream, marks)
                for index, (road, stream) in zip(range(rollouts), roads, strict=False)
            )
        )
    return rollouts * calls


def _prompt(scope: Scope, name: str, number: int, marks: dict[str, object]) -> Any:
    nonce = f"{scope.rollout_id}/{number}"
    # Every seventh call fails once, so that the SDK's own retry is among the traffic.
    fail = int(number % 7 == 0)
    truth = mark(rollout=scope.rollout_id, agent=name, nonce=nonce, fail=fail, **marks)
    return [{"role": "user", "content": truth}]


def _call(client: OpenAI, scope: Scope, number: int, stream: bool, marks: dict[str, object]) -> None:
    name = AGENTS[number % len(AGENTS)]
    with agent(name):
        answer: Any = client.chat.completions.create(
            model="any", messages=_prompt(scope, name, number, marks), stream=stream
        )
        for _ in answer if stream else ():
            pass


async def _acall(
    client: AsyncOpenAI, scope: Scope, number: int, stream: bool, marks: dict[str, object]
) -> None:
    name = AGENTS[number % len(AGENTS)]
    with agent(name):
        answer: Any = await client.chat.completions.create(
            model="any", messages=_prompt(scope, name, number, marks), stream=stream
        )
        if stream:
            async for _ in answer:
                pass


async def _threads(
    clients: Clients, scope: Scope, calls: int, stream: bool, marks: dict[str, object]
) -> None:
    def rollout() -> None:
        with rollout_scope(scope), ThreadPoolExecutor(calls) as pool:
            jobs = [pool.submit(_call, clients.sync, scope, i, stream, marks) for i in range(calls)]
        for job in jobs:
            job.result()

    with ThreadPoolExecutor(1) as own_thread:
        await asyncio.get_running_loop().run_in_executor(own_thread, rollout)


async def _tasks(clients: Clients, scope: Scope, calls: int, stream: bool, marks: dict[str, object]) -> None:
    with rollout_scope(scope):
        await asyncio.gather(*(_acall(clients.aio, scope, i, stream, marks) for i in range(calls)))
