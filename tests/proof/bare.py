"""Plays of the bare OpenAI client under `agent(...)`: pools, tasks, streams, retries, time-outs, leaving."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

from openai import AsyncOpenAI, OpenAI

from lightning_core.tracing.scope import agent
from tests.proof.http import open_http
from tests.proof.play import Play, prompt

NAMES = ("planner", "write query", "relecteur-éà", "检查/员")
LATE_SECONDS = 5.0
_numbers = itertools.count()


@asynccontextmanager
async def plays() -> AsyncIterator[list[Play]]:
    """All plays, on clients shared by all rollouts."""
    async with open_http() as (http, ahttp):
        client = OpenAI(api_key="none", http_client=http, timeout=300)
        yield list(_plays(client, AsyncOpenAI(api_key="none", http_client=ahttp, timeout=300)))


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


def _ask(rollout: str, name: str, stream: bool, **marks: object) -> dict[str, Any]:
    nonce = f"bare-{next(_numbers)}"
    return {"model": "any", "messages": prompt(rollout, name, nonce=nonce, **marks), "stream": stream}


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
