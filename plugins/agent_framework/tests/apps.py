"""Apps as users write them. Every prompt says which rollout and agent it truly belongs to."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agent_framework import Agent
from agent_framework_orchestrations import ConcurrentBuilder, HandoffBuilder, SequentialBuilder

from lightning_core.testing.truth import mark


@dataclass(frozen=True, slots=True)
class Kit:
    """The parts that an app of one rollout is built with."""

    rollout: str
    client: Any

    def agent(self, agent_name: str, marks: dict[str, object] | None = None, **parts: Any) -> Agent:
        truth = mark(rollout=self.rollout, agent=agent_name, **(marks or {}))
        # The double plays from what a request shows: a conversation kept at the service would not be in it.
        return Agent(self.client, truth, name=agent_name, default_options={"store": False}, **parts)


Build = Callable[[Kit], Any]


def look_up(word: str = "") -> str:
    """Look something up."""
    return f"found {uuid.uuid4().hex}"


def agents_as_tools(kit: Kit) -> Any:
    """boss asks three at once, one of them twice; the clerk has an intern."""
    intern = kit.agent("intern", {"slow": 0.01})
    clerk = kit.agent("clerk", {"calls": "ask_intern"}, tools=[intern.as_tool(name="ask_intern")])
    librarian = kit.agent("librarian", {"slow": 0.01})
    tools = [clerk.as_tool(name="ask_clerk"), librarian.as_tool(name="ask_librarian"), look_up]
    return kit.agent("boss", {"calls": "ask_clerk+ask_clerk+ask_librarian+look_up,look_up"}, tools=tools)


def sequential(kit: Kit) -> Any:
    members = [kit.agent("writer", {"calls": "look_up"}, tools=[look_up]), kit.agent("relecteur-é")]
    return SequentialBuilder(participants=members).build()


def concurrent(kit: Kit) -> Any:
    members = [kit.agent(name, {"slow": 0.01}) for name in ("north", "east", "south", "west")]
    return ConcurrentBuilder(participants=members).build()


def handoff(kit: Kit) -> Any:
    """triage hands over to sql, which uses a tool and hands over to review."""
    options: Any = {"require_per_service_call_history_persistence": True}
    triage = kit.agent("triage", {"calls": "handoff_to_sql"}, **options)
    sql = kit.agent("sql", {"calls": "look_up,handoff_to_review"}, tools=[look_up], **options)
    review = kit.agent("review", **options)
    return HandoffBuilder(participants=[triage, sql, review]).with_start_agent(triage).build()


CALLS: dict[Build, dict[str, int]] = {
    agents_as_tools: {"boss": 3, "clerk": 4, "intern": 2, "librarian": 1},
    sequential: {"writer": 2, "relecteur-é": 1},
    concurrent: {"north": 1, "east": 1, "south": 1, "west": 1},
    handoff: {"triage": 1, "sql": 2, "review": 1},
}
"""How many calls each agent makes in one rollout."""


async def enter(app: Any, *, stream: bool) -> None:
    """Run it to its end."""
    if not stream:
        await app.run("Do it.")
        return
    async for _ in app.run("Do it.", stream=True):
        pass
