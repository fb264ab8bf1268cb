"""Run one app in many rollouts at once, by each way the SDK offers, with either kind of model."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Literal

from agents import Agent, Model, OpenAIChatCompletionsModel, OpenAIResponsesModel, RunConfig, Runner
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from lightning_core.testing.server import GatewayDouble
from lightning_core.tracing.scope import Scope, rollout_scope
from plugins.openai_agents.tests.apps import Build

Dialect = Literal["chat", "responses"]
DIALECTS: tuple[Dialect, ...] = ("chat", "responses")
Entrance = Literal["run", "run_streamed", "run_sync in threads", "run_streamed in threads"]
ENTRANCES: tuple[Entrance, ...] = ("run", "run_streamed", "run_sync in threads", "run_streamed in threads")
ROLLOUTS = 4
"""At once; `tests.proof` runs 200."""


def scope_at(server: GatewayDouble, rollout: str = "r1") -> Scope:
    return Scope(rollout, 1, server.url, f"token-of-{rollout}")


@asynccontextmanager
async def open_model(dialect: Dialect) -> AsyncIterator[Model]:
    """A model whose client names no endpoint."""
    http = DefaultAsyncHttpxClient(verify=False)
    async with AsyncOpenAI(api_key="none", http_client=http) as client:
        if dialect == "chat":
            yield OpenAIChatCompletionsModel("any", client)
        else:
            yield OpenAIResponsesModel("any", client)


async def play(
    build: Build,
    server: GatewayDouble,
    entrance: Entrance = "run",
    dialect: Dialect = "chat",
    rollouts: int = ROLLOUTS,
    config: RunConfig | None = None,
) -> None:
    """All rollouts at once."""
    scopes = [scope_at(server, f"r{index}") for index in range(rollouts)]
    if "threads" in entrance:
        with ThreadPoolExecutor(rollouts) as pool:
            loop = asyncio.get_running_loop()
            jobs = [loop.run_in_executor(pool, _run, build, s, entrance, dialect, config) for s in scopes]
            await asyncio.gather(*jobs)
        return
    async with open_model(dialect) as model:
        agent = build(model)
        await asyncio.gather(*(arun(agent, s, entrance == "run_streamed", config) for s in scopes))


async def arun(
    agent: Agent[str], scope: Scope, streamed: bool = False, config: RunConfig | None = None
) -> None:
    """One rollout."""
    with rollout_scope(scope):
        if not streamed:
            await Runner.run(agent, "Do it.", context=scope.rollout_id, run_config=config)
            return
        result = Runner.run_streamed(agent, "Do it.", context=scope.rollout_id, run_config=config)
        async for _ in result.stream_events():
            pass


def _run(build: Build, scope: Scope, entrance: Entrance, dialect: Dialect, config: RunConfig | None) -> None:
    """One rollout in a thread, with a loop and a client of its own."""
    with asyncio.Runner() as runner:
        asyncio.set_event_loop(runner.get_loop())
        opened = open_model(dialect)
        agent = build(runner.run(opened.__aenter__()))
        if entrance == "run_streamed in threads":
            runner.run(arun(agent, scope, True, config))
        else:
            with rollout_scope(scope):
                Runner.run_sync(agent, "Do it.", context=scope.rollout_id, run_config=config)
        runner.run(opened.__aexit__(None, None, None))


def expect(server: GatewayDouble, per_rollout: dict[str, int], rollouts: int = ROLLOUTS) -> None:
    """Every tag is right, and each agent made just as many calls as it should have."""
    assert server.mistakes() == []
    assert server.agents() == Counter({name: count * rollouts for name, count in per_rollout.items()})
    calls = Counter(request.tagged().call for request in server.seen if request.status == 200)
    assert set(calls.values()) == {1}
