"""From a tool's run back to the call that asked for it: a LangGraph app, runner, gateway and store."""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import Any

from langchain.agents import create_agent
from langchain.tools import tool
from langchain_openai import ChatOpenAI
from lightning_langgraph import LightningCallback
from pydantic import SecretStr

from lightning_core.dialects.upstream import ChatRequest
from lightning_core.plugins import load_plugins
from lightning_core.records.linking import link, tool_call_ids
from lightning_core.records.types import Attempt, Rollout, Task, ToolEvent
from lightning_core.runner.runner import Runner
from lightning_core.tracing.openai_sdk import instrument
from lightning_core.tracing.scope import Scope
from tests.gateway.conftest import House, open_house
from tests.gateway.scripted import Line, ScriptedEngine

ROLLOUTS = [f"r{index}" for index in range(8)]


@tool
async def look_up(word: str) -> str:
    """Look a word up."""
    await asyncio.sleep(0.01)
    return f"{word} is a word"


def ask_and_answer(request: ChatRequest, choice: int) -> Line:
    """Two identical requests and one for a tool that is not there; an answer once they are met."""
    if request.messages[-1]["role"] == "tool":
        return Line("done")
    return Line(tool_calls=[_asking("look_up"), _asking("look_up"), _asking("ghost")])


def _asking(name: str) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps({"word": "asked"})}
    return {"id": f"call_{uuid.uuid4().hex}", "type": "function", "function": function}


async def test_each_run_of_a_tool_is_linked_to_the_call_that_asked_for_it() -> None:
    async with open_house(ScriptedEngine(ask_and_answer)) as house:
        await _run(house)
        calls = [call for found in (await house.store.get_calls(ROLLOUTS)).values() for call in found]
        events = [event for found in (await house.store.get_events(ROLLOUTS)).values() for event in found]
    asked = {
        (call.rollout_id, tool_call_id): call.id
        for call in calls
        for tool_call_id in tool_call_ids(call.choices[0].message)
    }
    linked = [event for event in link(calls, events) if isinstance(event, ToolEvent)]
    assert {(event.rollout_id, event.tool_call_id): event.call_id for event in linked} == asked
    assert len(linked) == len(asked) == 3 * len(ROLLOUTS)
    agents = {call.id: call.agent for call in calls}
    assert {(event.agent, agents[event.call_id or ""]) for event in linked} == {("clerk", "clerk")}
    unknown = [event.name for event in linked if event.error_type == "unknown_tool"]
    assert unknown == ["ghost"] * len(ROLLOUTS)


async def _run(house: House) -> None:
    """All rollouts at once, to their end."""
    llm = ChatOpenAI(model="policy", api_key=SecretStr("none"))
    agent: Any = create_agent(llm, [look_up], name="clerk")
    graph = agent.with_config(callbacks=[LightningCallback()])

    async def solve(task: Task) -> float:
        await graph.ainvoke({"messages": [("user", str(task.input["q"]))]})
        return 1.0

    def scope_for(attempt: Attempt) -> Scope:
        token = house.tokens.issue(attempt.rollout, attempt.number)
        return Scope(attempt.rollout.id, attempt.number, house.url, token)

    await house.store.enqueue(
        [
            Rollout(id=name, run_id="run", task=Task(input={"q": name}), group_id="g", step=0)
            for name in ROLLOUTS
        ]
    )
    stop = asyncio.Event()
    with instrument(load_plugins(["langgraph"]).who):
        runner = Runner(solve, house.store, run_id="run", scope_for=scope_for)
        serving = asyncio.create_task(runner.serve(stop))
        finished = await house.store.wait_finished(ROLLOUTS, timeout=60)
        stop.set()
        await serving
    assert [rollout.reward for rollout in finished] == [1.0] * len(ROLLOUTS), finished[0].error
