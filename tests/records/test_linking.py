"""Tool runs and spans find their call by the ids in its reply, in any order, in their own rollout."""

from __future__ import annotations

from typing import Any

import pytest

from lightning_core.records.linking import inherit_agents, link
from lightning_core.records.types import Call, Choice, Span, ToolEvent
from tests.build import make_call

TIMES: dict[str, Any] = {"started_at": 1.0, "ended_at": 2.0}


def call(name: str, *asks: str, rollout: str = "r", **fields: Any) -> Call:
    message: dict[str, Any] = {"content": None, "tool_calls": [{"id": tool_call} for tool_call in asks]}
    return make_call(name, rollout_id=rollout, choices=[Choice(message=message)], **{**TIMES, **fields})


def tool(tool_call_id: str | None, rollout: str = "r", **fields: Any) -> ToolEvent:
    given: dict[str, Any] = {
        "id": "t",
        "rollout_id": rollout,
        "attempt": 1,
        "agent": "a",
        "name": "f",
        **TIMES,
    }
    return ToolEvent(tool_call_id=tool_call_id, **{**given, **fields})


def span(**attributes: Any) -> Span:
    return Span(id="s", trace_id="t", rollout_id="r", attempt=1, name="chat", attributes=attributes, **TIMES)


def test_each_tool_run_finds_the_call_that_asked_for_it() -> None:
    calls = [call("c1", "x", "y"), call("c2", "z"), call("other", "x", rollout="r2")]
    runs = [tool("z"), tool("x"), tool("y"), tool("x", rollout="r2"), tool("w"), tool(None)]
    assert [event.call_id for event in link(calls, runs)] == ["c2", "c1", "c1", "other", None, None]


def test_a_span_finds_its_call_by_the_replys_id() -> None:
    calls = [call("c1", response_id="chatcmpl-c1"), call("c2", response_id="resp_c2")]
    spans = [span(**{"gen_ai.response.id": "resp_c2"}), span(**{"gen_ai.response.id": "else"}), span()]
    assert [event.call_id for event in link(calls, spans)] == ["c2", None, None]


def test_a_link_that_is_there_stays_and_a_reply_without_tools_asks_for_none() -> None:
    plain = call("c1").model_copy(update={"choices": [Choice(message={"content": "hi"}), Choice()]})
    assert [event.call_id for event in link([plain], [tool("x", call_id="given"), tool("x")])] == [
        "given",
        None,
    ]


def test_a_span_about_a_tool_finds_the_call_that_asked_and_the_reply_s_id_counts_first() -> None:
    calls = [call("c1", "x", response_id="chatcmpl-c1"), call("c2", "y")]
    about_x, both = (
        {"gen_ai.tool.call.id": "x"},
        {"gen_ai.tool.call.id": "y", "gen_ai.response.id": "chatcmpl-c1"},
    )
    assert [event.call_id for event in link(calls, [span(**about_x), span(**both)])] == ["c1", "c1"]


def test_of_calls_that_asked_under_one_id_the_agents_own_counts() -> None:
    calls = [call("c1", "x", agent="a"), call("c2", "x", agent="b"), call("c3", "y", agent="a")]
    runs = [tool("x", agent="b"), tool("x", agent="a"), tool("x", agent="c"), tool("y", agent="nested")]
    assert [event.call_id for event in link(calls, runs)] == ["c2", "c1", None, "c3"]


def test_what_fits_several_calls_is_linked_to_none() -> None:
    calls = [call("c1", "x", response_id="same"), call("c2", "x", response_id="same")]
    about_tool, about_call = span(**{"gen_ai.tool.call.id": "x"}), span(**{"gen_ai.response.id": "same"})
    events = [tool("x"), about_tool, about_call]
    assert [event.call_id for event in link(calls, events)] == [None, None, None]
    assert [event.call_id for event in link(calls[:1] * 2, events)] == ["c1", "c1", "c1"]


@pytest.mark.parametrize("tool_calls", [3, "x", ["x", None, {}, {"id": "y"}], {"id": "x"}])
def test_a_reply_that_is_not_well_formed_asks_for_what_can_be_read(tool_calls: Any) -> None:
    asking = call("c1").model_copy(update={"choices": [Choice(message={"tool_calls": tool_calls})]})
    assert [event.call_id for event in link([asking], [tool("x")])] == [None]


def test_a_span_has_the_agent_of_the_nearest_span_around_it_in_its_own_trace_and_rollout() -> None:
    def at(name: str, parent: str | None = None, **fields: Any) -> Span:
        return span().model_copy(update={"id": name, "parent_id": parent, **fields})

    spans = [
        at("low", "mid"),
        at("mid", "top"),
        at("top", "gone", agent="planner"),
        at("own", "top", agent="writer"),
        at("stray", "top", trace_id="other"),
        at("foreign", "top", rollout_id="r2"),
        at("circle", "circle"),
        tool("x"),
    ]
    agents = ["planner", "planner", "planner", "writer", None, None, None, "a"]
    assert [event.agent for event in inherit_agents(spans)] == agents
    assert [event.agent for event in inherit_agents(spans[::-1])] == agents[::-1]
