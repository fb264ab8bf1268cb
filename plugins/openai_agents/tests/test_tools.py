"""Tool events: every run of a tool once, under who asked for it, with the id of the request."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from agents import Agent, Model, ModelBehaviorError, RunConfig, Runner, function_tool
from agents.tracing import function_span, set_tracing_disabled
from lightning_openai_agents import install, uninstall

from lightning_core.testing.server import GatewayDouble
from lightning_core.tracing.scope import Scope, rollout_scope
from lightning_core.types import ToolEvent
from plugins.openai_agents.tests import apps, tracing
from plugins.openai_agents.tests.apps import Build, member
from plugins.openai_agents.tests.playing import DIALECTS, ROLLOUTS, Dialect, arun, open_model, scope_at
from plugins.openai_agents.tests.tracing import Recorder

Told = dict[tuple[str | None, str | None, str | None], str | None]


@function_tool
async def look_up(word: str) -> str:
    """Look a word up."""
    await asyncio.sleep(0.01)
    return f"{word} is a word"


@function_tool
def count(number: int) -> str:
    """Count."""
    return str(number)


@function_tool
def fail(word: str) -> str:
    """Always fail."""
    raise ZeroDivisionError(word)


@function_tool(failure_error_function=None)
def crash(word: str) -> str:
    """Fail, and end the run."""
    raise ZeroDivisionError(word)


@function_tool(timeout=0.01)
async def sleep(word: str) -> str:
    """Never end."""
    await asyncio.sleep(60)
    return word


@function_tool
def number(word: str) -> dict[str, int]:
    """Return something else than text, in a thread."""
    with function_span("a span of the app's own"):
        return {word: 1}


async def run(
    agent: Agent[str], server: GatewayDouble, *, rollout: str = "r1", streamed: bool = False, **config: Any
) -> list[ToolEvent]:
    """One rollout; what was seen of its tools."""
    scope = scope_at(server, rollout)
    await arun(agent, scope, streamed, RunConfig(**config))
    return tools_in(scope)


def tools_in(scope: Scope) -> list[ToolEvent]:
    return [seen for seen in scope.seen if isinstance(seen, ToolEvent)]


def told(server: GatewayDouble) -> Told:
    """What models were told on the wire: by rollout, agent and tool_call_id."""
    return {
        (request.tagged().rollout, request.tagged().agent, tool_call_id): text
        for request in server.seen
        for tool_call_id, text in _answers(request.body)
    }


def _answers(body: Any) -> Iterator[tuple[str, str]]:
    for message in body.get("messages", ()):
        if message["role"] == "tool":
            yield message["tool_call_id"], message["content"]
    for item in body.get("input", ()):
        if isinstance(item, dict) and item.get("type") == "function_call_output":
            yield item["call_id"], item["output"]


def reported(events: list[ToolEvent]) -> Told:
    """The same as the events say; every request at most once."""
    found: Told = {(event.rollout_id, event.agent, event.tool_call_id): event.result for event in events}
    assert len(found) == len(events)
    return found


def boss(model: Model, tools: list[Any], calls: str, **more: Any) -> Agent[str]:
    return member(model, "boss", {"calls": calls, "broken": more.pop("broken", "")}, tools=tools, **more)


def parallel(model: Model) -> Agent[str]:
    """Two identical requests at once, another tool beside them, and one again later."""
    return boss(model, [look_up, number], "look_up+look_up+number,look_up")


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("streamed", [False, True])
async def test_each_of_many_rollouts_keeps_its_runs(
    gateway: GatewayDouble, dialect: Dialect, streamed: bool
) -> None:
    async with open_model(dialect) as model:
        agent = parallel(model)
        names = [f"r{index}" for index in range(ROLLOUTS)]
        runs = await asyncio.gather(*(run(agent, gateway, rollout=name, streamed=streamed) for name in names))
    assert [Counter(event.name for event in events) for events in runs] == [
        {"look_up": 3, "number": 1}
    ] * ROLLOUTS
    assert [{event.rollout_id for event in events} for events in runs] == [{name} for name in names]
    assert reported([event for events in runs for event in events]) == told(gateway)


async def test_rollouts_in_threads_keep_their_runs(gateway: GatewayDouble) -> None:
    def thread(name: str) -> list[ToolEvent]:
        async def main() -> list[ToolEvent]:
            async with open_model("chat") as model:
                return await run(parallel(model), gateway, rollout=name)

        return asyncio.run(main())

    with ThreadPoolExecutor(ROLLOUTS) as pool:
        loop = asyncio.get_running_loop()
        jobs = [loop.run_in_executor(pool, thread, f"r{index}") for index in range(ROLLOUTS)]
        runs = await asyncio.gather(*jobs)
    assert reported([event for events in runs for event in events]) == told(gateway)
    assert len(told(gateway)) == 4 * ROLLOUTS


@pytest.mark.parametrize(
    "situation", [tracing.as_it_is, tracing.disabled, tracing.no_processors, tracing.own_before]
)
@pytest.mark.parametrize("tracing_disabled", [False, True])
async def test_tracing_on_and_off(
    gateway: GatewayDouble, model: Model, recorder: Recorder, situation: Any, tracing_disabled: bool
) -> None:
    situation(recorder)
    agent = boss(model, [look_up, fail], "look_up+look_up+fail+ghost")
    config: dict[str, Any] = {"tracing_disabled": tracing_disabled}
    scope = scope_at(gateway)
    with pytest.raises(ModelBehaviorError):
        await arun(agent, scope, config=RunConfig(**config))
    [ghost] = tools_in(scope)
    assert (ghost.name, ghost.error_type) == ("ghost", "unknown_tool")
    events = await run(boss(model, [look_up, fail], "look_up+look_up+fail"), gateway, **config)
    set_tracing_disabled(False)
    assert reported(events) == told(gateway)
    assert [event.error for event in events if event.error] == ["ZeroDivisionError: asked"]


async def test_a_run_has_its_arguments_result_and_times(gateway: GatewayDouble, model: Model) -> None:
    [event] = await run(boss(model, [look_up], "look_up"), gateway)
    assert event.arguments == '{"word": "asked"}'
    assert event.result == "asked is a word"
    assert event.error is event.error_type is None
    assert event.framework == "openai_agents"
    assert event.ended_at - event.started_at >= 0.01


async def test_what_a_trace_must_not_hold_is_left_out_of_the_result_alone(
    gateway: GatewayDouble, model: Model
) -> None:
    [event] = await run(boss(model, [look_up], "look_up"), gateway, trace_include_sensitive_data=False)
    assert (event.result, event.arguments) == (None, '{"word": "asked"}')
    assert [tool_call_id for _, _, tool_call_id in told(gateway)] == [event.tool_call_id]


async def test_every_kind_of_failure_is_told_apart(gateway: GatewayDouble, model: Model) -> None:
    @function_tool
    def lose(word: str) -> str:
        """Is given broken JSON."""
        return word

    tools = [look_up, count, fail, sleep, lose]
    agent = boss(model, tools, "look_up+count+fail+sleep+lose", broken="lose")
    events = {event.name: event for event in await run(agent, gateway)}
    assert {name: event.error_type for name, event in events.items()} == {
        "look_up": None,
        "count": "invalid_arguments",
        "fail": "raised",
        "sleep": "timed_out",
        "lose": "invalid_arguments",
    }
    assert events["fail"].error == "ZeroDivisionError: asked"
    assert events["lose"].arguments == '{"broken": '
    assert reported(list(events.values())) == told(gateway)


async def test_a_tool_that_raises_through_is_reported(gateway: GatewayDouble, model: Model) -> None:
    scope = scope_at(gateway)
    with pytest.raises(Exception, match="asked"):
        await arun(boss(model, [crash], "crash"), scope)
    [event] = tools_in(scope)
    assert (event.error, event.error_type, event.result) == ("ZeroDivisionError: asked", "raised", None)
    assert event.tool_call_id


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_tool_that_does_not_exist(gateway: GatewayDouble, dialect: Dialect, streamed: bool) -> None:
    async with open_model(dialect) as model:
        agent = boss(model, [look_up], "ghost+look_up+ghost")
        events = await run(agent, gateway, streamed=streamed, tool_not_found_behavior="return_error_to_model")
    assert [(event.name, event.error_type) for event in events] == [
        ("ghost", "unknown_tool"),
        ("ghost", "unknown_tool"),
        ("look_up", None),
    ]
    assert events[0].error == "Tool ghost not found in agent boss"
    assert reported(events).keys() == told(gateway).keys()


async def test_agents_as_tools_handoffs_and_guardrails(gateway: GatewayDouble, model: Model) -> None:
    """A handoff runs no tool; what an agent behind a tool asks for is its own."""
    expected: dict[Build, dict[tuple[str, str], int]] = {
        apps.handoffs: {("sql", "look_up"): 1, ("sql", "compute"): 1},
        apps.agents_as_tools: {
            ("boss", "ask_clerk"): 3,
            ("boss", "ask_librarian"): 1,
            ("boss", "look_up"): 1,
            ("clerk", "ask_intern"): 3,
        },
        apps.guarded: {("writer", "look_up"): 1},
    }
    for build, asked in expected.items():
        events = await run(build(model), gateway, rollout=build.__name__)
        assert Counter((event.agent, event.name) for event in events) == asked
        handed_over = {f'{{"assistant": "{name}"}}' for name in ("sql", "review")}
        wire = {
            key: text
            for key, text in told(gateway).items()
            if key[0] == build.__name__ and text not in handed_over and key[1] != "review"
        }
        assert reported(events) == wire


async def test_a_tool_that_awaits_approval_is_reported_when_it_has_run(
    gateway: GatewayDouble, model: Model
) -> None:
    @function_tool(needs_approval=True)
    def delete(word: str) -> str:
        """Delete."""
        return f"{word} is gone"

    agent = boss(model, [delete], "delete")
    scope = scope_at(gateway)
    with rollout_scope(scope):
        result = await Runner.run(agent, "Do it.", context="r1")
        assert tools_in(scope) == []
        state = result.to_state()
        state.approve(result.interruptions[0])
        await Runner.run(agent, state)
    [event] = tools_in(scope)
    assert (event.name, event.result, event.error) == ("delete", "asked is gone", None)
    assert json.loads(event.arguments) == {"word": "asked"}


async def test_a_tool_cancelled_for_anothers_failure_is_not_reported(
    gateway: GatewayDouble, model: Model
) -> None:
    @function_tool
    async def wait(word: str) -> str:
        """Never end."""
        await asyncio.sleep(60)
        return word

    scope = scope_at(gateway)
    with pytest.raises(Exception, match="asked"):
        await arun(boss(model, [wait, crash], "wait+crash"), scope)
    assert [event.name for event in tools_in(scope)] == ["crash"]


async def test_installed_twice_each_run_is_reported_once(
    gateway: GatewayDouble, model: Model, recorder: Recorder
) -> None:
    tracing.own_around(recorder)
    install()
    agent = boss(model, [look_up], "ghost+look_up")
    events = await run(agent, gateway, tool_not_found_behavior="return_error_to_model")
    assert [event.name for event in events] == ["ghost", "look_up"]


async def test_uninstalled_nothing_is_reported(gateway: GatewayDouble, model: Model) -> None:
    await run(boss(model, [look_up], "look_up"), gateway)
    uninstall()
    assert await run(boss(model, [look_up], "look_up"), gateway, rollout="r2") == []


def test_uninstall_takes_back_what_was_changed() -> None:
    program = (
        "from agents import custom_span\n"
        "from agents.tool_context import ToolContext\n"
        "from lightning_openai_agents import install, uninstall\n"
        "before = ToolContext.__init__\n"
        "install()\n"
        "with custom_span('x', disabled=True): assert ToolContext.__init__ is not before\n"
        "uninstall()\n"
        "assert ToolContext.__init__ is before"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
