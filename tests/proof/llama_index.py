"""Plays of LlamaIndex: agents in tools, handoffs, and a workflow of the app's own, streamed or not."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

from lightning_llama_index import attach
from llama_index.llms.openai_like import OpenAILike

from plugins.llama_index.tests import apps
from tests.proof.http import open_http
from tests.proof.play import Play

SHAPES = {
    apps.agents_as_tools: "agents in tools",
    apps.handoffs: "AgentWorkflow with a handoff",
    apps.drafts: "a workflow of the app's own",
}


@asynccontextmanager
async def plays() -> AsyncIterator[list[Play]]:
    """All plays, on one client shared by all rollouts."""
    async with open_http() as (http, ahttp):
        options: Any = {"is_chat_model": True, "is_function_calling_model": True, "timeout": 300}
        llm = OpenAILike("any", api_key="none", http_client=http, async_http_client=ahttp, **options)
        yield list(_plays(llm))


def _plays(llm: OpenAILike) -> Iterator[Play]:
    for build, topology in SHAPES.items():
        for stream in (False, True):
            run = _entering(build, llm, stream)
            yield Play("LlamaIndex", topology, "streamed" if stream else "run", run, apps.CALLS[build])


def _entering(build: apps.Build, llm: OpenAILike, stream: bool) -> Any:
    async def run(rollout: str) -> None:
        await apps.enter(attach(build(apps.Kit(rollout, llm, stream))))

    return run
