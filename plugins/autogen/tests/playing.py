"""Run one app in many rollouts at once, in tasks of one event loop or in threads that have one each."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, Literal

from autogen_core.models import ModelInfo
from autogen_ext.models.openai import OpenAIChatCompletionClient
from lightning_autogen import attach
from openai import DefaultAsyncHttpxClient

from lightning_core.testing.server import GatewayDouble
from lightning_core.tracing.scope import Scope, rollout_scope
from plugins.autogen.tests.apps import Build, Kit

Entrance = Literal["run", "run_stream"]
Place = Literal["tasks", "threads"]
ENTRANCES: tuple[Entrance, ...] = ("run", "run_stream")
ROLLOUTS = 4
"""At once; `tests.proof` runs 200."""
INFO = ModelInfo(
    vision=False, function_calling=True, json_output=False, family="unknown", structured_output=False
)


def scope_at(server: GatewayDouble, rollout: str = "r1") -> Scope:
    return Scope(rollout, 1, server.url, f"token-of-{rollout}")


@asynccontextmanager
async def open_client(**client: Any) -> AsyncIterator[OpenAIChatCompletionClient]:
    """A model client for one event loop, which names no endpoint unless it is given one."""
    given: Any = {"api_key": "none", "timeout": 60, **client}
    async with DefaultAsyncHttpxClient(verify=False) as http:
        yield OpenAIChatCompletionClient(model="played", model_info=INFO, http_client=http, **given)


async def enter(app: Any, entrance: Entrance, task: str | None = "go") -> None:
    if entrance == "run":
        await app.run(task=task)
    else:
        async for _ in app.run_stream(task=task):
            pass


async def play(
    build: Build, server: GatewayDouble, entrance: Entrance, place: Place = "tasks", *, stream: bool = False
) -> None:
    """All rollouts at once, each with an attached app of its own."""
    names = [f"r{index}" for index in range(ROLLOUTS)]
    if place == "tasks":
        async with open_client() as client:
            await asyncio.gather(
                *(rollout(build, scope_at(server, name), client, entrance, stream) for name in names)
            )
        return
    with ThreadPoolExecutor(ROLLOUTS) as pool:
        loop = asyncio.get_running_loop()
        jobs = [
            loop.run_in_executor(pool, _thread, build, scope_at(server, name), entrance, stream)
            for name in names
        ]
        await asyncio.gather(*jobs)


async def rollout(
    build: Build, scope: Scope, client: OpenAIChatCompletionClient, entrance: Entrance, stream: bool
) -> None:
    with rollout_scope(scope):
        await enter(attach(build(Kit(scope.rollout_id, client, stream))), entrance)


def _thread(build: Build, scope: Scope, entrance: Entrance, stream: bool) -> None:
    async def main() -> None:
        async with open_client() as client:
            await rollout(build, scope, client, entrance, stream)

    asyncio.run(main())


def expect(server: GatewayDouble, per_rollout: dict[str, int], rollouts: int = ROLLOUTS) -> None:
    """Every tag is right, and each agent made just as many calls as it should have."""
    assert server.mistakes() == []
    assert server.agents() == Counter({name: count * rollouts for name, count in per_rollout.items()})
    calls = Counter(request.tagged().call for request in server.seen if request.status == 200)
    assert set(calls.values()) == {1}
