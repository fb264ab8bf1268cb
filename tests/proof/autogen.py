"""Plays of AutoGen: every shape of team, in tasks of one loop and in threads with a loop each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

from autogen_core.models import ModelInfo
from autogen_ext.models.openai import OpenAIChatCompletionClient
from lightning_autogen import attach

from plugins.autogen.tests import apps
from tests.proof.http import open_http
from tests.proof.play import Play

SHAPES = {
    apps.selector: "SelectorGroupChat with its manager",
    apps.swarm: "Swarm",
    apps.graph_flow: "GraphFlow fan-out",
    apps.society: "SocietyOfMind",
    apps.tools: "AgentTool and TeamTool",
    apps.reflecting: "reflection, agent inside a tool",
}
INFO = ModelInfo(
    vision=False, function_calling=True, json_output=False, family="unknown", structured_output=False
)


@asynccontextmanager
async def plays() -> AsyncIterator[list[Play]]:
    """All plays, on one client shared by the rollouts of this loop."""
    async with open_http() as (_, ahttp):
        yield list(_plays(model(ahttp)))


def model(http: Any) -> OpenAIChatCompletionClient:
    return OpenAIChatCompletionClient(
        model="scripted", model_info=INFO, api_key="none", http_client=http, timeout=300
    )


def _plays(client: OpenAIChatCompletionClient) -> Iterator[Play]:
    for build, topology in SHAPES.items():
        calls = apps.CALLS[build]
        yield Play("AutoGen", topology, "run", entering(build, client, stream=False), calls)
        yield Play("AutoGen", topology, "run_stream", entering(build, client, stream=True), calls)
    for build in (apps.tools, apps.society):
        yield Play("AutoGen", SHAPES[build], "threads", _in_thread(build), apps.CALLS[build])


def entering(build: apps.Build, client: OpenAIChatCompletionClient, *, stream: bool) -> Any:
    async def run(rollout: str) -> None:
        team = attach(build(apps.Kit(rollout, client, stream)))
        if not stream:
            await team.run(task="go")
            return
        async for _ in team.run_stream(task="go"):
            pass

    return run


def _in_thread(build: apps.Build) -> Any:
    """A rollout in a thread, with a loop and a client of its own."""

    async def main(rollout: str) -> None:
        async with open_http() as (_, ahttp):
            await entering(build, model(ahttp), stream=False)(rollout)

    def run(rollout: str) -> None:
        asyncio.run(main(rollout))

    return run
