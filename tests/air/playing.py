"""Apps that run in rollouts on a real gateway, and what AIR makes of what was recorded."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from lightning_core.dialects.upstream import ChatRequest
from lightning_core.plugins import load_plugins
from lightning_core.records.types import Attempt, Call, Reward, Rollout, Task
from lightning_core.runner.runner import Runner
from lightning_core.stores.base import Store
from lightning_core.tracing.openai_sdk import instrument
from lightning_core.tracing.scope import Scope
from lightning_core.trainer.batch import add_automatic
from lightning_core.trainer.parts import make_rulebook
from tests.gateway.conftest import House, open_house
from tests.gateway.scripted import Line, ScriptedEngine

TOOL, REFUSING = "look_up", "refuse"
ASKED = {
    "well": (TOOL, '{"word": "boat"}'),
    "raised": (REFUSING, '{"word": "boat"}'),
    "garbled": (TOOL, '{"word": '),
    "misfit": (TOOL, '{"wort": "boat"}'),
    "ghost": ("ghost", "{}"),
}
"""The model's requests, by the task's word."""


def ask_once(request: ChatRequest, choice: int) -> Line:
    """Ask for the tool that the task says, and answer in words whatever came of it."""
    texts = [str(message["content"]) for message in request.messages]
    wanted = next(name for name in ASKED if any(f"<{name}>" in text for text in texts))
    if any(message["role"] == "tool" for message in request.messages):
        return Line(f"so it is {wanted}")
    name, arguments = ASKED[wanted]
    function = {"name": name, "arguments": arguments}
    return Line(tool_calls=[{"id": f"call_{uuid.uuid4().hex}", "type": "function", "function": function}])


async def play(
    app: Callable[[str], Awaitable[object]],
    tasks: Iterable[str] = tuple(ASKED),
    plugins: Iterable[str] = (),
    says: Callable[[ChatRequest, int], Line] = ask_once,
    store: Store | None = None,
    agents: tuple[str, ...] | None = None,
) -> tuple[dict[str, list[Reward]], dict[str, list[Call]]]:
    """Run the app once for each task, all at once; what AIR stored, and the calls, by task."""
    names = list(tasks)
    async with open_house(ScriptedEngine(says=says), store=store, agents=agents) as house:
        rollouts = await _finished(app, names, house, plugins, agents)
        calls = await house.store.get_calls(names)
        rulebook = make_rulebook(True, load_plugins([]))
        assert rulebook is not None
        await add_automatic(house.store, rulebook, rollouts, calls, await house.store.get_rewards(names))
        stored = await house.store.get_rewards(names)
    return {name: [each for each in stored[name] if each.kind == "intermediate"] for name in names}, calls


async def _finished(
    app: Any, names: list[str], house: House, plugins: Iterable[str], agents: tuple[str, ...] | None
) -> list[Rollout]:
    async def solve(task: Task) -> float:
        try:
            await app(f"Go on. <{task.input['q']}>")
        except Exception:  # some frameworks end a run at a tool that is not there
            return 0.0
        return 1.0

    def scope_for(attempt: Attempt) -> Scope:
        token = house.tokens.issue(attempt.rollout, attempt.number)
        return Scope(attempt.rollout.id, attempt.number, house.url, token, agents)

    await house.store.enqueue(
        [Rollout(id=name, run_id="run", task=Task(input={"q": name}), group_id="g", step=0) for name in names]
    )
    stop = asyncio.Event()
    loaded = load_plugins(plugins)
    assert loaded.broken == {}
    with instrument(loaded.who):
        runner = Runner(solve, house.store, run_id="run", scope_for=scope_for)
        serving = asyncio.create_task(runner.serve(stop))
        finished = await house.store.wait_finished(names, timeout=120)
        stop.set()
        await serving
    assert [rollout.error for rollout in finished] == [None] * len(names)
    return finished


EXPECTED = {
    "well": [],
    "raised": ["air:tool_raised"],
    "garbled": ["air:invalid_arguments"],
    "misfit": ["air:invalid_arguments"],
    "ghost": ["air:unknown_tool"],
}


def check(rewards: dict[str, list[Reward]], calls: dict[str, list[Call]], agent: str) -> None:
    """Each fault is found once, and is the first call's, which asked."""
    assert {name: [reward.source for reward in given] for name, given in rewards.items()} == {
        name: EXPECTED[name] for name in rewards
    }
    for name, given in rewards.items():
        for reward in given:
            first = calls[name][0]
            assert (reward.call_id, reward.agent, reward.kind) == (first.id, agent, "intermediate")
            assert json.dumps(first.choices[0].message).count("call_") == 1
            assert reward.reason
