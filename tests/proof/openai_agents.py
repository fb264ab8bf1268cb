"""Plays of the OpenAI Agents SDK: handoffs, agents as tools, guardrails; chat and Responses models."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

from agents import Agent, Model, OpenAIChatCompletionsModel, OpenAIResponsesModel, RunConfig, Runner
from lightning_openai_agents import attach
from openai import AsyncOpenAI

from plugins.openai_agents.tests import apps
from tests.proof.http import open_http
from tests.proof.play import Play

SHAPES = {
    apps.handoffs: "handoffs",
    apps.agents_as_tools: "agents as tools",
    apps.guarded: "parallel guardrails",
    apps.everything: "guardrail, handoff, agents as tools",
}
UNTRACED = RunConfig(tracing_disabled=True)


@asynccontextmanager
async def plays() -> AsyncIterator[list[Play]]:
    """All plays, on one client shared by all rollouts."""
    async with open_http() as (_, ahttp):
        client = AsyncOpenAI(api_key="none", http_client=ahttp, timeout=300)
        yield list(_plays(OpenAIChatCompletionsModel("any", client), OpenAIResponsesModel("any", client)))


def _plays(*models: Model) -> Iterator[Play]:
    for dialect, model in zip(("chat", "responses"), models, strict=True):
        for build, topology in SHAPES.items():
            agent = attach(build(model))
            for streamed in (False, True):
                way = f"{'run_streamed' if streamed else 'run'} {dialect}"
                run = entering(agent, streamed=streamed)
                yield Play("OpenAI Agents", topology, way, run, apps.CALLS[build])


def entering(agent: Agent[str], *, streamed: bool) -> Any:
    async def run(rollout: str) -> None:
        if not streamed:
            await Runner.run(agent, "Do it.", context=rollout, run_config=UNTRACED)
            return
        result = Runner.run_streamed(agent, "Do it.", context=rollout, run_config=UNTRACED)
        async for _ in result.stream_events():
            pass

    return run
