"""Apps as users write them. Every prompt says which rollout and agent it truly belongs to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from google.adk.agents import BaseAgent, LlmAgent, ParallelAgent, RunConfig, SequentialAgent
from google.adk.agents.run_config import StreamingMode
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.adk.tools.agent_tool import AgentTool
from google.genai import types

from lightning_core.testing.truth import mark


@dataclass(frozen=True, slots=True)
class Kit:
    """The parts that an app of one rollout is built with."""

    rollout: str
    model: LiteLlm

    def agent(self, agent_name: str, marks: dict[str, object] | None = None, **parts: Any) -> LlmAgent:
        truth = mark(rollout=self.rollout, agent=agent_name, **(marks or {}))
        return LlmAgent(name=agent_name, model=self.model, instruction=truth, description="Helps.", **parts)


Build = Callable[[Kit], BaseAgent]


def look_up(word: str) -> str:
    """Look something up."""
    return "found"


def agents_as_tools(kit: Kit) -> BaseAgent:
    """boss asks three at once, one of them twice."""
    clerk = kit.agent("clerk", {"calls": "look_up"}, tools=[look_up])
    librarian = kit.agent("librarian", {"slow": 0.01})
    script = {"calls": "clerk+clerk+librarian+look_up,look_up"}
    return kit.agent("boss", script, tools=[AgentTool(clerk), AgentTool(librarian), look_up])


def transfer(kit: Kit) -> BaseAgent:
    """triage hands over to sql, which uses a tool."""
    sql = kit.agent("sql", {"calls": "look_up"}, tools=[look_up])
    return kit.agent("triage", {"calls": "transfer_to_agent", "given": "sql"}, sub_agents=[sql])


def sequence(kit: Kit) -> BaseAgent:
    """A writer, four at once, and an editor."""
    four = [kit.agent(name, {"slow": 0.01}) for name in ("north", "east", "south", "west")]
    parts = [kit.agent("writer", {"calls": "look_up"}, tools=[look_up])]
    return SequentialAgent(
        name="team", sub_agents=[*parts, ParallelAgent(name="four", sub_agents=four), kit.agent("editor")]
    )


CALLS: dict[Build, dict[str, int]] = {
    agents_as_tools: {"boss": 3, "clerk": 4, "librarian": 1},
    transfer: {"triage": 1, "sql": 2},
    sequence: {"writer": 2, "north": 1, "east": 1, "south": 1, "west": 1, "editor": 1},
}
"""How many calls each agent makes in one rollout."""


async def enter(agent: BaseAgent, *, stream: bool) -> None:
    """Run it to its end."""
    runner = InMemoryRunner(agent, app_name="app")
    session = await runner.session_service.create_session(app_name="app", user_id="user")
    async for _ in runner.run_async(
        user_id="user",
        session_id=session.id,
        new_message=types.Content(role="user", parts=[types.Part(text="Do it.")]),
        run_config=RunConfig(streaming_mode=StreamingMode.SSE if stream else StreamingMode.NONE),
    ):
        pass
