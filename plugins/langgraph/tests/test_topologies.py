"""Whatever the graph's shape and however it is entered, each call carries its own node or agent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from langchain_openai import ChatOpenAI

from lightning_core.testing.server import GatewayDouble
from plugins.langgraph.tests import apps
from plugins.langgraph.tests.playing import ENTRANCES, Entrance, expect, play

PARALLEL = {"north": 1, "east": 1, "south": 1, "west": 1, "join": 1}
BOSS = {"boss": 3, "librarian": 1, "clerk": 2, "look_up": 1, "summarise": 1}
Build = Callable[[ChatOpenAI, bool], Any]

pytestmark = pytest.mark.filterwarnings("ignore:create_react_agent has been moved")


@pytest.mark.parametrize("entrance", ENTRANCES)
@pytest.mark.parametrize(
    ("build", "calls"),
    [
        (apps.parallel, PARALLEL),
        (apps.fan_out, {"plan": 1, "work": 5, "merge": 1}),
        (apps.nested, {**PARALLEL, "caller": 2, "first": 1, "agent2": 1}),
        (apps.same_names, {"agent": 2, "model": 1, "helper": 1, "writer": 1}),
        (apps.nameless, {"agent": 1}),
        (apps.alone, {"researcher": 1}),
        (apps.helper_as_tool, {"chief": 2, "helper": 1}),
        (apps.boss_with_tools, BOSS),
        (apps.teams_as_tools, {"boss": 2, "leaf": 2, "sub": 2, "caller": 2}),
        (apps.agent_in_node, {"sql": 1, "node": 1, "nameless": 1}),
        (apps.supervisor, {"supervisor": 3, "maths": 1, "search": 1}),
        (apps.swarm, {"alice": 1, "bob": 1}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_every_call_is_named(
    gateway: GatewayDouble, llm: ChatOpenAI, build: Build, calls: dict[str, int], entrance: Entrance
) -> None:
    await play(build(llm, entrance in ("ainvoke", "astream")), gateway, entrance)
    expect(gateway, calls)


@pytest.mark.parametrize("build", [apps.parallel, apps.fan_out, apps.nested])
async def test_sync_nodes_in_an_async_graph_are_named(
    gateway: GatewayDouble, llm: ChatOpenAI, build: Build
) -> None:
    await play(build(llm, False), gateway, "ainvoke")
    assert len(gateway.seen) > 0
    assert gateway.mistakes() == []


async def test_a_label_of_a_run_is_no_name_of_an_agent(gateway: GatewayDouble, llm: ChatOpenAI) -> None:
    await play(apps.nameless(llm, True).with_config(run_name="question 17"), gateway, "ainvoke")
    expect(gateway, {"agent": 1})
