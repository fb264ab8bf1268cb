"""Agents as users write them. Every prompt says which rollout and agent it truly belongs to.

The truth is written by each agent's own instructions, which the SDK asks for before every model call:
the rollout is the run's context, the nonce is new for each call.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from agents import (
    Agent,
    GuardrailFunctionOutput,
    Model,
    RunContextWrapper,
    Runner,
    function_tool,
    input_guardrail,
)

from lightning_core.testing.truth import mark

Build = Callable[[Model], Agent[str]]


def member(model: Model, name: str, marks: dict[str, object] | None = None, **parts: Any) -> Agent[str]:
    def instructions(context: RunContextWrapper[str], agent: Agent[str]) -> str:
        return mark(rollout=context.context, agent=name, nonce=uuid.uuid4().hex, **(marks or {}))

    return Agent(name=name, instructions=instructions, model=model, **parts)


@function_tool
async def look_up() -> str:
    """Look something up."""
    return "looked up"


@function_tool
def compute() -> str:
    """Compute something, in a thread of the SDK."""
    return "computed"


def handoffs(model: Model) -> Agent[str]:
    """triage hands over to sql, which uses tools and hands over to review."""
    review = member(model, "review")
    script = {"calls": "look_up+compute,transfer_to_review"}
    sql = member(model, "sql", script, tools=[look_up, compute], handoffs=[review])
    return member(model, "triage", {"calls": "transfer_to_sql"}, handoffs=[sql])


def agents_as_tools(model: Model) -> Agent[str]:
    """boss asks three at once, one of them twice at once, and later again; the clerk has an intern."""
    intern = member(model, "intern", {"slow": 0.01})
    clerk = member(model, "clerk", {"calls": "ask_intern"}, tools=[intern.as_tool("ask_intern", "Ask.")])
    librarian = member(model, "librarian", {"slow": 0.01})
    tools = [
        clerk.as_tool("ask_clerk", "Ask."),
        librarian.as_tool("ask_librarian", "Ask."),
        look_up,
    ]
    return member(
        model, "boss", {"calls": "ask_clerk+ask_clerk+ask_librarian+look_up,ask_clerk"}, tools=tools
    )


def guarded(model: Model) -> Agent[str]:
    """Two guardrails, each running an agent of its own beside the agent's first call."""
    names = ("guard", "保安/é ")
    guards = [guardrail(member(model, name, {"slow": 0.01})) for name in names]
    return member(
        model, "writer", {"slow": 0.01, "calls": "look_up"}, tools=[look_up], input_guardrails=guards
    )


def guardrail(guard: Agent[str]) -> Any:
    @input_guardrail(run_in_parallel=True)
    async def check(
        context: RunContextWrapper[str], agent: Agent[Any], question: Any
    ) -> GuardrailFunctionOutput:
        done = await Runner.run(guard, question, context=context.context)
        return GuardrailFunctionOutput(output_info=done.final_output, tripwire_triggered=False)

    return check


def everything(model: Model) -> Agent[str]:
    """A guarded triage hands over to an agent with a function tool and two agents as tools, all at once."""
    north, south = (member(model, name, {"slow": 0.01}) for name in ("north", "south"))
    tools = [look_up, north.as_tool("ask_north", "Ask."), south.as_tool("ask_south", "Ask.")]
    sql = member(model, "sql", {"calls": "look_up+ask_north+ask_south"}, tools=tools)
    guards = [guardrail(member(model, "guard", {"slow": 0.01}))]
    return member(model, "triage", {"calls": "transfer_to_sql"}, handoffs=[sql], input_guardrails=guards)


CALLS: dict[Build, dict[str, int]] = {
    handoffs: {"triage": 1, "sql": 2, "review": 1},
    agents_as_tools: {"boss": 3, "clerk": 6, "intern": 3, "librarian": 1},
    guarded: {"writer": 2, "guard": 1, "保安/é ": 1},
    everything: {"triage": 1, "guard": 1, "sql": 2, "north": 1, "south": 1},
}
"""How many calls each agent makes in one rollout."""
