"""Tool events: every run of a tool once, under who asked for it, with the id of the request."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.base import Response
from autogen_agentchat.messages import BaseAgentEvent, BaseChatMessage
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core import CancellationToken, SingleThreadedAgentRuntime
from autogen_core.tools import FunctionTool
from autogen_ext.models.openai import OpenAIChatCompletionClient
from lightning_autogen import attach, detach

from lightning_core.records.types import ToolEvent
from lightning_core.testing.server import GatewayDouble
from lightning_core.tracing.scope import Scope, rollout_scope
from plugins.autogen.tests import apps
from plugins.autogen.tests.apps import Kit
from plugins.autogen.tests.playing import ENTRANCES, ROLLOUTS, Entrance, enter, open_client, scope_at

Client = OpenAIChatCompletionClient
Told = dict[tuple[str | None, str | None, str | None], str | None]


async def look_up(word: str) -> str:
    """Look a word up."""
    await asyncio.sleep(0.01)
    return f"{word} is a word"


def count(number: int) -> str:
    """Count."""
    return str(number)


def fail(word: str) -> str:
    """Always fail."""
    raise ZeroDivisionError(word)


class Streaming(AssistantAgent):
    """Overrides the stream and passes on what it is given, as apps do."""

    async def on_messages_stream(
        self, messages: Sequence[BaseChatMessage], cancellation_token: CancellationToken
    ) -> AsyncGenerator[BaseAgentEvent | BaseChatMessage | Response, None]:
        async for item in super().on_messages_stream(messages, cancellation_token):
            yield item


def asking(
    kit: Kit,
    name: str,
    tools: list[Any],
    calls: str,
    kind: type[AssistantAgent] = AssistantAgent,
    **more: Any,
) -> AssistantAgent:
    script = kit.prompt(name, calls=calls, broken=more.pop("broken", ""))
    return kind(
        name,
        kit.client,
        system_message=script,
        tools=tools,
        model_client_stream=kit.stream,
        max_tool_iterations=4,
        **more,
    )


async def run(
    build: Callable[[Kit], Any],
    server: GatewayDouble,
    client: Client,
    *,
    entrance: Entrance = "run",
    rollout: str = "r1",
    stream: bool = False,
) -> list[ToolEvent]:
    """One rollout; what was seen of its tools."""
    scope = scope_at(server, rollout)
    with rollout_scope(scope):
        await enter(attach(build(Kit(rollout, client, stream))), entrance)
    return tools_in(scope)


def tools_in(scope: Scope) -> list[ToolEvent]:
    return [seen for seen in scope.seen if isinstance(seen, ToolEvent)]


def told(server: GatewayDouble) -> Told:
    """Returns the tool results that models got on the wire, by rollout, agent and tool_call_id."""
    return {
        (request.tagged().rollout, request.tagged().agent, message["tool_call_id"]): message["content"]
        for request in server.seen
        for message in request.body["messages"]
        if message["role"] == "tool"
    }


def reported(events: list[ToolEvent]) -> Told:
    """The same as the events say; every request at most once."""
    found: Told = {(event.rollout_id, event.agent, event.tool_call_id): event.result for event in events}
    assert len(found) == len(events)
    return found


def parallel(kit: Kit) -> Any:
    """Two identical requests at once, another tool beside them, and one again later."""
    return asking(kit, "boss", [look_up, count], "look_up+look_up+count,look_up")


@pytest.mark.parametrize("entrance", ENTRANCES)
@pytest.mark.parametrize("stream", [False, True])
async def test_each_of_many_rollouts_keeps_its_runs(
    gateway: GatewayDouble, client: Client, entrance: Entrance, stream: bool
) -> None:
    names = [f"r{index}" for index in range(ROLLOUTS)]
    more: dict[str, Any] = {"entrance": entrance, "stream": stream}
    runs = await asyncio.gather(*(run(parallel, gateway, client, rollout=name, **more) for name in names))
    assert [Counter(event.name for event in events) for events in runs] == [
        {"look_up": 3, "count": 1}
    ] * ROLLOUTS
    assert [{event.rollout_id for event in events} for events in runs] == [{name} for name in names]
    assert reported([event for events in runs for event in events]) == told(gateway)


async def test_rollouts_in_threads_keep_their_runs(gateway: GatewayDouble) -> None:
    def thread(name: str) -> list[ToolEvent]:
        async def main() -> list[ToolEvent]:
            async with open_client() as client:
                return await run(parallel, gateway, client, rollout=name)

        return asyncio.run(main())

    with ThreadPoolExecutor(ROLLOUTS) as pool:
        loop = asyncio.get_running_loop()
        jobs = [loop.run_in_executor(pool, thread, f"r{index}") for index in range(ROLLOUTS)]
        runs = await asyncio.gather(*jobs)
    assert reported([event for events in runs for event in events]) == told(gateway)
    assert len(told(gateway)) == 4 * ROLLOUTS


async def test_a_run_has_its_arguments_result_and_times(gateway: GatewayDouble, client: Client) -> None:
    [event] = await run(lambda kit: asking(kit, "boss", [look_up], "look_up"), gateway, client)
    assert event.arguments == '{"word": "asked"}'
    assert event.result == "asked is a word"
    assert event.error is event.error_type is None
    assert event.framework == "autogen"
    assert event.ended_at - event.started_at >= 0.01


async def test_every_kind_of_failure_is_told_apart(gateway: GatewayDouble, client: Client) -> None:
    def lose(word: str) -> str:
        """Is given broken JSON."""
        return word

    def build(kit: Kit) -> Any:
        tools = [look_up, count, fail, lose]
        calls = "look_up+count+fail+lose+ghost"
        return asking(kit, "boss", tools, calls, broken="lose")

    events = {event.name: event for event in await run(build, gateway, client)}
    assert {name: event.error_type for name, event in events.items()} == {
        "look_up": None,
        "count": "raised",
        "fail": "raised",
        "lose": "invalid_arguments",
        "ghost": "unknown_tool",
    }
    assert events["fail"].error == "asked"
    assert events["lose"].arguments == '{"broken": '
    assert "valid integer" in str(events["count"].error)
    assert reported(list(events.values())) == told(gateway)


async def test_a_tool_of_another_name_than_its_function(gateway: GatewayDouble, client: Client) -> None:
    tool = FunctionTool(count, "Count.", name="tally")
    [event] = await run(lambda kit: asking(kit, "boss", [tool], "tally"), gateway, client)
    assert (event.name, event.error_type) == ("tally", "raised")


async def test_a_stream_that_an_app_overrides_reports_once(gateway: GatewayDouble, client: Client) -> None:
    def build(kit: Kit) -> Any:
        boss = asking(kit, "boss", [look_up], "look_up+look_up", Streaming)
        return RoundRobinGroupChat([boss], max_turns=1)

    events = await run(build, gateway, client, entrance="run_stream")
    assert [(event.agent, event.name) for event in events] == [("boss", "look_up")] * 2
    assert reported(events) == told(gateway)


async def test_agents_and_teams_as_tools_and_their_own_tools(gateway: GatewayDouble, client: Client) -> None:
    """The inner agents' events pass through the outer agent's stream too, and one has the same name."""

    def build(kit: Kit) -> Any:
        clerk = apps.AskAgent(asking(kit, "clerk", [look_up], "look_up+look_up"))
        namesake = asking(kit, "boss", [look_up], "look_up")
        team = apps.AskTeam(RoundRobinGroupChat([namesake], max_turns=1), "team", "Ask.")
        boss = asking(kit, "boss", [clerk, team, look_up], "clerk+team+look_up")
        return RoundRobinGroupChat([boss], max_turns=1)

    events = await run(build, gateway, client, entrance="run_stream")
    assert Counter((event.agent, event.name) for event in events) == {
        ("clerk", "look_up"): 2,
        ("boss", "look_up"): 2,
        ("boss", "clerk"): 1,
        ("boss", "team"): 1,
    }
    assert reported(events) == told(gateway)


@pytest.mark.parametrize(
    ("build", "asked"),
    [
        (apps.swarm, {("alice", "transfer_to_bob"): 1}),
        (
            apps.tools,
            {("boss", "librarian"): 1, ("boss", "clerk"): 2, ("boss", "team"): 1},
        ),
        (apps.reflecting, {("thinker", "look_up"): 1}),
    ],
)
async def test_handoffs_are_tools_and_so_are_agents(
    gateway: GatewayDouble, client: Client, build: apps.Build, asked: dict[tuple[str, str], int]
) -> None:
    events = await run(build, gateway, client)
    assert Counter((event.agent, event.name) for event in events) == asked
    assert all(event.tool_call_id and event.error is None for event in events)


async def test_the_tools_of_a_societys_members_are_theirs(gateway: GatewayDouble, client: Client) -> None:
    from autogen_agentchat.agents import SocietyOfMindAgent

    def build(kit: Kit) -> Any:
        inner = RoundRobinGroupChat([asking(kit, "worker", [look_up], "look_up")], max_turns=1)
        mind = SocietyOfMindAgent("society", inner, kit.client, instruction=kit.prompt("society"))
        return RoundRobinGroupChat([mind], max_turns=1)

    [event] = await run(build, gateway, client, entrance="run_stream")
    assert (event.agent, event.name) == ("worker", "look_up")


async def test_a_shared_runtime_keeps_the_runs_of_rollouts_apart(
    gateway: GatewayDouble, client: Client
) -> None:
    runtime = attach(SingleThreadedAgentRuntime())
    runtime.start()  # outside of every rollout

    async def rollout(name: str) -> list[ToolEvent]:
        scope = scope_at(gateway, name)
        with rollout_scope(scope):
            kit = Kit(name, client, runtime=runtime)
            boss = asking(kit, "boss", [look_up], "look_up+look_up")
            await RoundRobinGroupChat([boss], max_turns=1, runtime=runtime).run(task="go")
        return tools_in(scope)

    runs = await asyncio.gather(*(rollout(f"r{index}") for index in range(4)))
    await runtime.stop()
    assert [len(events) for events in runs] == [2] * 4
    assert reported([event for events in runs for event in events]) == told(gateway)


async def test_detached_nothing_is_reported(gateway: GatewayDouble, client: Client) -> None:
    scope = scope_at(gateway)
    with rollout_scope(scope):
        boss = attach(asking(Kit("r1", client), "boss", [look_up], "look_up"))
        detach()
        await boss.run(task="go")
    assert tools_in(scope) == []
