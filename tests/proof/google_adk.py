"""Plays of Google ADK: agents as tools, a transfer, and a sequence with parallel agents, streamed or not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

from google.adk.models.lite_llm import LiteLlm
from lightning_google_adk import attach

from plugins.google_adk.tests import apps
from tests.proof.play import Play

SHAPES = {
    apps.agents_as_tools: "agents as tools",
    apps.transfer: "a transfer",
    apps.sequence: "sequential and parallel agents",
}


@asynccontextmanager
async def plays() -> AsyncIterator[list[Play]]:
    """All plays, on LiteLLM's own clients."""
    yield list(_plays(LiteLlm("openai/any", api_key="none", timeout=300)))


def _plays(model: LiteLlm) -> Iterator[Play]:
    for build, topology in SHAPES.items():
        for stream in (False, True):
            run = _entering(build, model, stream)
            yield Play("Google ADK", topology, "streamed" if stream else "run", run, apps.CALLS[build])
    in_thread = _in_thread(apps.agents_as_tools, model)
    yield Play("Google ADK", "agents as tools", "threads", in_thread, apps.CALLS[apps.agents_as_tools])


def _entering(build: apps.Build, model: LiteLlm, stream: bool) -> Any:
    async def run(rollout: str) -> None:
        await apps.enter(attach(build(apps.Kit(rollout, model))), stream=stream)

    return run


def _in_thread(build: apps.Build, model: LiteLlm) -> Any:
    """A rollout in a thread, with a loop of its own."""

    def run(rollout: str) -> None:
        asyncio.run(_entering(build, model, False)(rollout))

    return run
