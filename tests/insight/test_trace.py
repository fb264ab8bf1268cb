"""The tree of a rollout: every record once, at the place that its ids say."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_core.insight.trace import Node, Trace, build, read_traces
from lightning_core.records.types import Call, Choice, Event, Reward, Rollout, Span, Task, ToolEvent
from lightning_core.stores.sqlite import MemoryStore
from tests.build import make_call

ROLLOUT = Rollout(id="r", run_id="run", task=Task(input={"q": 1}), group_id="g", step=0)


def call(name: str, *asks: str, at: float = 0.0, **fields: Any) -> Call:
    message: dict[str, Any] = {"content": None, "tool_calls": [{"id": tool_call} for tool_call in asks]}
    return make_call(name, at=at, choices=[Choice(message=message)], response_id=f"reply-{name}", **fields)


def tool(name: str, tool_call_id: str | None, at: float = 0.0) -> ToolEvent:
    return ToolEvent(
        id=name,
        rollout_id="r",
        attempt=1,
        agent="a",
        name=name,
        tool_call_id=tool_call_id,
        started_at=at,
        ended_at=at,
    )


def span(name: str, parent: str | None = None, at: float = 0.0, trace: str = "t", **attributes: Any) -> Span:
    dotted = {f"gen_ai.{key.replace('__', '.')}": value for key, value in attributes.items()}
    return Span(
        id=name,
        trace_id=trace,
        parent_id=parent,
        rollout_id="r",
        attempt=1,
        name=name,
        attributes=dotted,
        started_at=at,
        ended_at=at,
    )


def reward(value: float, call_id: str | None = None, **fields: Any) -> Reward:
    kind = "final" if call_id is None else "intermediate"
    return Reward(rollout_id="r", attempt=1, value=value, kind=kind, call_id=call_id, **fields)


def shape(nodes: tuple[Node, ...]) -> Any:
    """The tree as nested dicts of names."""
    return {_name(node): shape(node.children) for node in nodes}


def _name(node: Node) -> str:
    return str(node.item.value) if isinstance(node.item, Reward) else node.item.id


def tree(calls: list[Call], events: list[Event], rewards: tuple[Reward, ...] = ()) -> Any:
    return shape(build(ROLLOUT, calls, rewards, events).nodes)


def test_tools_and_rewards_lie_under_their_call_and_the_final_reward_at_the_end() -> None:
    calls = [call("c1", "x", "y", at=1), call("c2", at=5)]
    events: list[Event] = [tool("second", "y", at=3), tool("first", "x", at=2), tool("nobody's", None, at=4)]
    rewards = reward(1.0), reward(0.5, "c1"), reward(0.25, "unknown")
    assert tree(calls, events, rewards) == {
        "c1": {"first": {}, "second": {}, "0.5": {}},
        "nobody's": {},
        "c2": {},
        "1.0": {},
        "0.25": {},
    }
    assert list(tree(calls, events, rewards)) == ["c1", "nobody's", "c2", "1.0", "0.25"]


def test_a_call_takes_the_place_of_the_span_that_describes_it_and_a_tool_likewise() -> None:
    """The outer agent calls a model, which asks for a tool, within which an inner agent calls a model."""
    calls = [call("outer", "x", at=1), call("inner", at=4)]
    events: list[Event] = [
        span("agent", at=0),
        span("chat", "agent", at=1, response__id="reply-outer"),
        span("http", "chat", at=1),
        tool("run", "x", at=2),
        span("execute", "agent", at=2, tool__call__id="x"),
        span("sub-agent", "execute", at=3, operation__name="invoke_agent", response__id="reply-inner"),
        span("sub-chat", "sub-agent", at=4, response__id="reply-inner"),
    ]
    for records in (events, events[::-1]):
        assert tree(calls, records) == {
            "agent": {
                "outer": {
                    "chat": {"http": {}},
                    "run": {"execute": {"sub-agent": {"inner": {"sub-chat": {}}}}},
                }
            }
        }


def test_spans_of_equal_ids_in_two_traces_are_two() -> None:
    events: list[Event] = [
        span("a", trace="t1", at=1),
        span("a", trace="t2", at=2),
        span("b", "a", trace="t1"),
        span("c", "a", trace="t2"),
    ]
    first, second = build(ROLLOUT, [], [], events).nodes
    assert shape((first,)) == {"a": {"b": {}}}
    assert shape((second,)) == {"a": {"c": {}}}


def test_a_span_about_a_tool_lies_under_the_run_that_its_own_call_asked_for() -> None:
    """The server gives each reply's first request the id "0", and one reply gives it twice."""
    calls = [call(name, "0", at=at).model_copy(update={"agent": name}) for at, name in enumerate("ab")]
    runs = [tool(f"{name}'s", "0", at=3).model_copy(update={"agent": name}) for name in "ab"]
    about = span("s", tool__call__id="0").model_copy(update={"call_id": "a"})
    assert tree(calls, [*runs, about]) == {"a": {"a's": {"s": {}}}, "b": {"b's": {}}}
    again = tool("again", "0", at=4)
    assert tree(calls, [*runs, again, about])["a"] == {"s": {}, "a's": {}, "again": {}}


def test_a_span_without_an_agent_has_that_of_the_nearest_around_it() -> None:
    named = span("top").model_copy(update={"agent": "planner"})
    trace = build(ROLLOUT, [], [], [span("low", "mid"), span("mid", "top"), named, span("apart")])
    agents = {node.item.id: node.item.agent for node, _ in trace.walk() if isinstance(node.item, Span)}
    assert agents == {"top": "planner", "mid": "planner", "low": "planner", "apart": None}


@pytest.mark.parametrize("parents", ["a", "ba", "bca", "bcb"])
def test_spans_that_go_round_in_a_circle_are_still_shown(parents: str) -> None:
    events: list[Event] = [span(name, parent) for name, parent in zip("abc", parents, strict=False)]
    trace = build(ROLLOUT, [], [], events)
    assert sorted(_name(node) for node, _ in trace.walk()) == sorted(event.id for event in events)


@given(st.data())
def test_every_record_is_in_the_tree_once_whatever_the_ids_say(data: st.DataObject) -> None:
    names = st.sampled_from("abcde")
    maybe = st.one_of(st.none(), names)
    calls = [call(name, *data.draw(st.sets(names))) for name in data.draw(st.sets(names))]
    events: list[Event] = []
    for name in data.draw(st.sets(names)):
        attributes = {"response__id": f"reply-{data.draw(names)}"} if data.draw(st.booleans()) else {}
        if data.draw(st.booleans()):
            attributes["tool__call__id"] = data.draw(names)
        events.append(span(name, data.draw(maybe), **attributes))
    events += [tool(name, data.draw(maybe)) for name in data.draw(st.sets(names))]
    rewards = [reward(1.0, data.draw(maybe)) for _ in range(2)]
    trace = build(ROLLOUT, calls, rewards, events)
    found = [(type(node.item).__name__, _name(node)) for node, _ in trace.walk()]
    wanted = [(type(item).__name__, _name(Node(item))) for item in (*calls, *events, *rewards)]
    assert sorted(found) == sorted(wanted)


def test_ten_thousand_spans_deep_is_not_too_deep() -> None:
    events: list[Event] = [span(f"{number}", f"{number - 1}", at=number) for number in range(10_000)]
    walked = [_name(node) for node, _ in build(ROLLOUT, [], [], events).walk()]
    assert walked == [str(number) for number in range(10_000)]


def test_a_reward_lies_under_its_call_also_by_the_id_of_the_reply_or_of_a_tool_call() -> None:
    calls = [call("c1", "x"), call("c2", "y", "z", at=1), call("c3", "z", at=2)]
    rewards = reward(0.1, "reply-c1"), reward(0.2, "y"), reward(0.3, "z"), reward(0.4, "c3")
    assert tree(calls, [], rewards) == {"c1": {"0.1": {}}, "c2": {"0.2": {}}, "c3": {"0.4": {}}, "0.3": {}}


async def test_traces_are_read_from_the_store_in_the_order_asked_for() -> None:
    store = MemoryStore()
    others = ROLLOUT.model_copy(update={"id": "other"})
    await store.enqueue([ROLLOUT, others])
    for attempt in await store.lease("w", 2, 60.0):
        if attempt.rollout.id == "r":
            await store.add_call(call("c", "x"))
            await store.add_events([tool("t", "x")])
        await store.finish(attempt, reward=1.0)
    other, own = await read_traces(store, [others, ROLLOUT])
    assert isinstance(own, Trace)
    assert shape(own.nodes) == {"c": {"t": {}}, "1.0": {}}
    assert shape(other.nodes) == {"1.0": {}}
