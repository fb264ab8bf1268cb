"""Apps as users write them. Every prompt says which rollout and agent it truly belongs to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent
from llama_index.core.llms import LLM
from llama_index.core.workflow import Context, Event, StartEvent, StopEvent, Workflow, step

from lightning_core.testing.truth import mark


@dataclass(frozen=True, slots=True)
class Kit:
    """The parts that an app of one rollout is built with."""

    rollout: str
    llm: LLM
    stream: bool = True

    def agent(self, agent_name: str, marks: dict[str, object] | None = None, **parts: Any) -> FunctionAgent:
        return FunctionAgent(
            name=agent_name,
            description="Helps.",
            system_prompt=self.truth(agent_name, **(marks or {})),
            llm=self.llm,
            streaming=self.stream,
            **parts,
        )

    def truth(self, agent_name: str, **marks: object) -> str:
        return mark(rollout=self.rollout, agent=agent_name, **marks)


Build = Callable[[Kit], Any]


def look_up(word: str) -> str:
    """Look something up."""
    return "found"


def agents_as_tools(kit: Kit) -> Any:
    """boss asks three at once, one of them twice."""
    clerk = kit.agent("clerk", {"calls": "look_up"}, tools=[look_up])
    librarian = kit.agent("librarian", {"slow": 0.01}, tools=[look_up])

    async def ask_clerk(question: str) -> str:
        """Ask."""
        return str(await clerk.run(user_msg=question))

    async def ask_librarian(question: str) -> str:
        """Ask."""
        return str(await librarian.run(user_msg=question))

    script = {"calls": "ask_clerk+ask_clerk+ask_librarian,look_up"}
    return kit.agent("boss", script, tools=[ask_clerk, ask_librarian, look_up])


def handoffs(kit: Kit) -> Any:
    """triage hands over to sql, which uses a tool."""
    triage = kit.agent("triage", {"calls": "handoff", "given": "sql"}, tools=[])
    sql = kit.agent("sql", {"calls": "look_up"}, tools=[look_up])
    return AgentWorkflow([triage, sql], root_agent="triage")


class Draft(Event):
    number: int


class Written(Event):
    pass


class Drafts(Workflow):
    """A workflow of the app's own, whose steps call the model: two drafts at once, then a verdict."""

    def __init__(self, kit: Kit) -> None:
        super().__init__(timeout=300)
        self.kit = kit

    @step
    async def plan(self, ctx: Context, ev: StartEvent) -> Draft | None:
        await self.kit.llm.acomplete(self.kit.truth("plan"))
        for number in range(2):
            ctx.send_event(Draft(number=number))
        return None

    @step(num_workers=2)
    async def write(self, ev: Draft) -> Written:
        await self.kit.llm.acomplete(self.kit.truth("write", slow=0.01))
        return Written()

    @step
    async def decide(self, ctx: Context, ev: Written) -> StopEvent | None:
        if not ctx.collect_events(ev, [Written, Written]):
            return None
        await self.kit.agent("judge", {"calls": "look_up"}, tools=[look_up]).run(user_msg="Which?")
        return StopEvent(result="done")


def drafts(kit: Kit) -> Any:
    return Drafts(kit)


CALLS: dict[Build, dict[str, int]] = {
    agents_as_tools: {"boss": 3, "clerk": 4, "librarian": 1},
    handoffs: {"triage": 1, "sql": 2},
    drafts: {"plan": 1, "write": 2, "judge": 2},
}
"""How many calls each agent makes in one rollout."""


async def enter(app: Any) -> None:
    """Run it to its end, and read its events."""
    handler = app.run() if isinstance(app, Drafts) else app.run(user_msg="Do it.")
    async for _ in handler.stream_events():
        pass
    await handler
