"""An agent of the OpenAI Agents SDK with its default settings is answered by the real gateway and engine."""

from __future__ import annotations

from pathlib import Path

from agents import Agent, OpenAIResponsesModel, RunConfig, Runner
from openai import AsyncOpenAI

from tests.backends.serving import gateway, serving


async def test_an_agent_with_the_sdks_default_settings_is_answered(qwen: Path) -> None:
    async with serving(qwen) as backend, gateway(backend) as (web, store):
        client = AsyncOpenAI(
            api_key=web.headers["authorization"].removeprefix("Bearer "), base_url=f"{web.base_url}/v1"
        )
        clerk = Agent(name="clerk", instructions="Look it up.")
        desk = Agent(name="desk", tools=[clerk.as_tool("ask_clerk", "Looks something up.")])
        desk.model = OpenAIResponsesModel("gpt-5.4", client)
        desk.model_settings.max_tokens = 4
        await Runner.run(desk, "2 + 2 =", run_config=RunConfig(tracing_disabled=True), max_turns=1)
        await client.close()
        (call,) = (await store.get_calls(["r1"]))["r1"]
        assert (call.status, call.dialect) == ("completed", "responses")
        assert call.request["reasoning"]["effort"] == "none"
        assert call.request["text"]["verbosity"] == "low"
