"""Plays of Microsoft Agent Framework: agents as tools and orchestrations, with both APIs, streamed or not."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

from agent_framework.openai import OpenAIChatClient, OpenAIChatCompletionClient
from lightning_agent_framework import attach
from openai import AsyncOpenAI

from plugins.agent_framework.tests import apps
from tests.proof.http import open_http
from tests.proof.play import Play

SHAPES = {
    apps.agents_as_tools: "agents as tools",
    apps.sequential: "sequential, with a tool",
    apps.concurrent: "four at once",
    apps.handoff: "handoffs",
}


@asynccontextmanager
async def plays() -> AsyncIterator[list[Play]]:
    """All plays, on one client shared by all rollouts."""
    async with open_http() as (_, ahttp):
        openai = AsyncOpenAI(api_key="none", http_client=ahttp, timeout=300)
        yield list(_plays(openai))


def _plays(openai: AsyncOpenAI) -> Iterator[Play]:
    clients = {
        "chat": OpenAIChatCompletionClient("any", async_client=openai),
        "responses": OpenAIChatClient("any", async_client=openai),
    }
    for dialect, client in clients.items():
        for build, topology in SHAPES.items():
            for stream in (False, True):
                way = f"{'streamed' if stream else 'run'} {dialect}"
                run = _entering(build, client, stream)
                yield Play("Agent Framework", topology, way, run, apps.CALLS[build])


def _entering(build: apps.Build, client: Any, stream: bool) -> Any:
    async def run(rollout: str) -> None:
        await apps.enter(attach(build(apps.Kit(rollout, client))), stream=stream)

    return run
