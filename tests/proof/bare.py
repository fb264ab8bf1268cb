"""Plays of the bare OpenAI client under `agent(...)`: pools, tasks, streams, retries, time-outs, leaving."""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing
from importlib.util import find_spec
from multiprocessing.pool import ThreadPool
from typing import Any

import requests
import urllib3
from openai import AsyncOpenAI, OpenAI

from lightning_core.testing.server import serving
from lightning_core.testing.truth import mark
from lightning_core.tracing.scope import agent
from tests.proof.http import open_http
from tests.proof.play import Play, prompt

NAMES = ("planner", "write query", "relecteur-éà", "检查/员")
PINNED = (*NAMES, "slow", "stays", "leaves")
"""Agents whose prompts have versions; the app sends the first."""
PROMPTS = [mark(prompt=version) for version in range(3)]
LATE_SECONDS = 5.0
_numbers = itertools.count()


@asynccontextmanager
async def plays() -> AsyncIterator[list[Play]]:
    """All plays, on clients shared by all rollouts."""
    async with open_http() as (http, ahttp):
        client = OpenAI(api_key="none", http_client=http, timeout=300)
        with serving() as hosted, closing(ThreadPool(len(NAMES))) as early:
            yield [
                *_plays(client, AsyncOpenAI(api_key="none", http_client=ahttp, timeout=300)),
                *_past_the_sdk(http, ahttp, hosted.url),
                Play("bare client", "an older pool", "map", _early(early, client), dict.fromkeys(NAMES, 1)),
            ]


def _plays(client: OpenAI, aclient: AsyncOpenAI) -> Iterator[Play]:
    each = dict.fromkeys(NAMES, 1)
    for stream in (False, True):
        how = " streamed" if stream else ""
        yield Play("bare client", "four agents at once", "pool" + how, _pool(client, stream), each)
        yield Play("bare client", "four agents at once", "tasks" + how, _tasks(aclient, stream), each)
        yield Play(
            "bare client", "two 500s, then a reply", "tasks" + how, _tasks(aclient, stream, fail=2), each
        )
    yield Play("bare client", "time-out, then a reply", "tasks", _late(aclient), {"slow": 1})
    yield Play("bare client", "left in mid-reply", "tasks", _leaving(aclient), {"stays": 1}, {"leaves": 1})


def _past_the_sdk(http: Any, ahttp: Any, hosted: str) -> Iterator[Play]:
    """The same calls, made with HTTP libraries."""
    each = dict.fromkeys(NAMES, 1)

    def by_requests(url: str, body: dict[str, Any]) -> None:
        requests.post(url, json=body, timeout=300)

    def by_urllib3(url: str, body: dict[str, Any]) -> None:
        urllib3.request("POST", url, json=body, timeout=300)

    async def by_httpx(url: str, body: dict[str, Any]) -> None:
        await ahttp.post(url, json=body, timeout=300)

    async def by_aiohttp(url: str, body: dict[str, Any]) -> None:
        import aiohttp

        async with aiohttp.ClientSession() as session, session.post(url, json=body) as reply:
            await reply.read()

    senders = [by_requests, by_urllib3, by_httpx]
    for send in [*senders, *([by_aiohttp] if find_spec("aiohttp") else [])]:
        name = send.__name__.removeprefix("by_")
        yield Play("bare client", "past the SDK", name, _sending(send), each)

    def run(rollout: str) -> None:
        """An API that the gateway does not speak."""
        with agent("gemini"):
            by_requests(f"{hosted}/v1beta/models/g:generateContent", {"contents": rollout})

    yield Play("bare client", "past the SDK, another API", "requests", run, {}, noticed=1)


def _sending(send: Any) -> Any:
    url = "http://127.0.0.1:1/v1/chat/completions"

    def run(rollout: str) -> None:
        for name in NAMES:
            with agent(name):
                send(url, _ask(rollout, name, False))

    async def arun(rollout: str) -> None:
        for name in NAMES:
            with agent(name):
                await send(url, _ask(rollout, name, False))

    return arun if inspect.iscoroutinefunction(send) else run


def _early(pool: ThreadPool, client: OpenAI) -> Any:
    def run(rollout: str) -> None:
        def call(name: str) -> None:
            with agent(name):
                client.chat.completions.create(**_ask(rollout, name, False))

        pool.map(call, NAMES)

    return run


def _ask(rollout: str, name: str, stream: bool, **marks: object) -> dict[str, Any]:
    nonce = f"bare-{next(_numbers)}"
    messages = [{"role": "system", "content": PROMPTS[0]}, *prompt(rollout, name, nonce=nonce, **marks)]
    return {"model": "any", "messages": messages, "stream": stream}


def _pool(client: OpenAI, stream: bool) -> Any:
    """In a thread: a pool of the app's own makes the calls."""

    def call(rollout: str, name: str) -> None:
        with agent(name):
            answer: Any = client.chat.completions.create(**_ask(rollout, name, stream))
            for _ in answer if stream else ():
                pass

    def run(rollout: str) -> None:
        with ThreadPoolExecutor(len(NAMES)) as pool:
            for job in [pool.submit(call, rollout, name) for name in NAMES]:
                job.result()

    return run


def _tasks(client: AsyncOpenAI, stream: bool, **marks: object) -> Any:
    async def call(rollout: str, name: str) -> None:
        with agent(name):
            answer: Any = await client.chat.completions.create(**_ask(rollout, name, stream, **marks))
            if stream:
                async for _ in answer:
                    pass

    async def run(rollout: str) -> None:
        await asyncio.gather(*(call(rollout, name) for name in NAMES))

    return run


def _late(client: AsyncOpenAI) -> Any:
    """The first try takes too long for the client; the SDK tries again."""

    async def run(rollout: str) -> None:
        with agent("slow"):
            await client.with_options(timeout=LATE_SECONDS, max_retries=20).chat.completions.create(
                **_ask(rollout, "slow", False, stuck=1)
            )

    return run


def _leaving(client: AsyncOpenAI) -> Any:
    """One stream is closed at its first piece, a call beside it is not."""

    async def leave(rollout: str) -> None:
        with agent("leaves"):
            answer: Any = await client.chat.completions.create(**_ask(rollout, "leaves", True, endless=1))
            async for _ in answer:
                break
            await answer.close()

    async def stay(rollout: str) -> None:
        with agent("stays"):
            await client.chat.completions.create(**_ask(rollout, "stays", False))

    async def run(rollout: str) -> None:
        await asyncio.gather(leave(rollout), stay(rollout))

    return run
