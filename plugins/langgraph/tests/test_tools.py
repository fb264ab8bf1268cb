"""Tool events: every run of a tool once, under who asked for it, with the id of the request."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal
from uuid import UUID, uuid4

import pytest
from langchain.agents import create_agent
from langchain.tools import tool
from langchain_core.messages import AIMessage, HumanMessage, ToolCall, ToolMessage
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.tools import ToolException
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from lightning_langgraph import LightningCallback

import lightning_core
from lightning_core.records.types import ToolEvent
from lightning_core.testing.server import GatewayDouble
from lightning_core.testing.truth import mark
from lightning_core.tracing.scope import Scope, rollout_scope
from plugins.langgraph.tests import apps
from plugins.langgraph.tests.playing import given, scope_at

pytestmark = pytest.mark.filterwarnings("ignore:create_react_agent has been moved")
Entrance = Literal["invoke", "stream", "ainvoke", "astream"]
ENTRANCES: tuple[Entrance, ...] = ("invoke", "stream", "ainvoke", "astream")


@tool
async def look_up(word: str) -> str:
    """Look a word up."""
    await asyncio.sleep(0.01)
    return f"{word} is a word"


@tool
def count(number: int) -> str:
    """Count."""
    return str(number)


@tool
def fail(word: str) -> str:
    """Always fail."""
    raise ZeroDivisionError(word)


@tool
def late(word: str) -> str:
    """Come too late."""
    raise TimeoutError("too late")


@tool
def misread(word: str) -> str:
    """Fail over data of its own, which is not what it was given."""
    return str(Scope.__name__ and lightning_core.Task.model_validate({"input": 3}))


@tool
def sync_look_up(word: str) -> str:
    """Look a word up, in a thread."""
    return f"{word} is a word"


async def run(
    graph: Any,
    server: GatewayDouble,
    entrance: Entrance = "ainvoke",
    rollout: str = "r1",
    callback: LightningCallback | None = None,
) -> list[ToolEvent]:
    """One rollout; what was seen of its tools."""
    scope = scope_at(server, rollout)
    graph = graph.with_config(callbacks=[callback or LightningCallback()])
    with rollout_scope(scope):
        if entrance == "ainvoke":
            await graph.ainvoke(given(rollout))
        elif entrance == "astream":
            async for _ in graph.astream(given(rollout), stream_mode="messages"):
                pass
        elif entrance == "invoke":
            await asyncio.to_thread(graph.invoke, given(rollout))
        else:
            await asyncio.to_thread(lambda: list(graph.stream(given(rollout), stream_mode="messages")))
    return tools_in(scope)


def tools_in(scope: Scope) -> list[ToolEvent]:
    return [seen for seen in scope.seen if isinstance(seen, ToolEvent)]


def boss(llm: ChatOpenAI, tools: list[Any], calls: str, **more: Any) -> Any:
    script = mark(agent="boss", calls=calls, broken=more.pop("broken", ""))
    return create_agent(llm, tools, system_prompt=script, name="boss", **more)


def told(server: GatewayDouble) -> dict[tuple[str | None, str | None, str], str]:
    """Returns the tool results that models got on the wire, by rollout, agent and tool_call_id."""
    return {
        (request.tagged().rollout, request.tagged().agent, message["tool_call_id"]): message["content"]
        for request in server.seen
        for message in request.body["messages"]
        if message["role"] == "tool"
    }


def reported(events: list[ToolEvent]) -> dict[tuple[str | None, str | None, str], str | None]:
    """The same as the events say; every request at most once."""
    found: dict[tuple[str | None, str | None, str], str | None]
    found = {(event.rollout_id, event.agent, event.tool_call_id or ""): event.result for event in events}
    assert len(found) == len(events)
    return found


@pytest.mark.parametrize("entrance", ENTRANCES)
async def test_each_of_many_rollouts_keeps_its_runs(
    gateway: GatewayDouble, llm: ChatOpenAI, entrance: Entrance
) -> None:
    """Two identical requests at once, another tool beside them, and one callback for all rollouts."""
    aio = entrance.startswith("a")
    look = look_up if aio else sync_look_up
    agent = boss(llm, [look, count], f"{look.name}+{look.name}+count,{look.name}")
    callback = LightningCallback()
    names = [f"r{index}" for index in range(16)]
    runs = await asyncio.gather(*(run(agent, gateway, entrance, name, callback=callback) for name in names))
    assert [Counter(event.name for event in events) for events in runs] == [{look.name: 3, "count": 1}] * 16
    assert [{event.rollout_id for event in events} for events in runs] == [{name} for name in names]
    assert reported([event for events in runs for event in events]) == told(gateway)
    assert callback.lightning_runs.open_count() == callback.lightning_tools.open_count() == 0


async def test_a_run_has_its_arguments_result_and_times(gateway: GatewayDouble, llm: ChatOpenAI) -> None:
    [event] = await run(boss(llm, [look_up], "look_up"), gateway)
    assert event.arguments == '{"word": "asked"}'
    assert event.result == "asked is a word"
    assert event.error is event.error_type is None
    assert event.framework == "langgraph"
    assert event.ended_at - event.started_at >= 0.01


async def test_arguments_that_do_not_fit_the_schema(gateway: GatewayDouble, llm: ChatOpenAI) -> None:
    [event] = await run(boss(llm, [count], "count"), gateway)
    assert event.error_type == "invalid_arguments"
    assert "valid integer" in str(event.error)
    assert "Please fix the error" in str(event.result)
    assert reported([event]) == told(gateway)


@pytest.mark.parametrize("entrance", ENTRANCES)
async def test_arguments_that_are_not_json(
    gateway: GatewayDouble, llm: ChatOpenAI, entrance: Entrance
) -> None:
    agent = boss(llm, [sync_look_up, fail], "sync_look_up+fail", broken="fail")
    [refused, good] = sorted(await run(agent, gateway, entrance), key=lambda event: event.name)
    assert (refused.name, refused.agent, refused.error_type) == ("fail", "boss", "invalid_arguments")
    assert refused.error
    assert good.error is None
    on_the_wire = {tool_call_id for _, _, tool_call_id in told(gateway)}
    assert on_the_wire == {good.tool_call_id, refused.tool_call_id}
    # What LangChain has streamed it completes itself, and then the schema refuses.
    streamed = entrance.endswith("stream")
    assert refused.arguments == ("{}" if streamed else '{"broken": ')
    assert (refused.result is not None) == streamed


async def test_a_tool_that_does_not_exist(gateway: GatewayDouble, llm: ChatOpenAI) -> None:
    events = await run(boss(llm, [look_up], "ghost+look_up"), gateway)
    [ghost, good] = sorted(events, key=lambda event: event.name)
    assert (ghost.name, ghost.agent, ghost.error_type) == ("ghost", "boss", "unknown_tool")
    assert "not a valid tool" in str(ghost.error)
    assert good.error is None
    assert reported([ghost, good]) == told(gateway)


async def test_a_tool_that_raises_ends_the_run_and_is_reported(
    gateway: GatewayDouble, llm: ChatOpenAI
) -> None:
    scope = scope_at(gateway)
    graph = boss(llm, [fail], "fail").with_config(callbacks=[LightningCallback()])
    with rollout_scope(scope), pytest.raises(ZeroDivisionError):
        await graph.ainvoke(given("r1"))
    [event] = tools_in(scope)
    assert (event.error, event.error_type, event.result) == ("ZeroDivisionError: asked", "raised", None)
    assert event.tool_call_id


def looping(llm: ChatOpenAI, tools: Any, offered: list[Any], calls: str) -> Any:
    """A loop by hand: the agent is the node "thinker", its tools are a node of their own."""
    bound = llm.bind_tools(offered)

    async def thinker(state: MessagesState) -> dict[str, Any]:
        script = HumanMessage(mark(agent="thinker", calls=calls))
        return {"messages": [await bound.ainvoke([script, *state["messages"]])]}

    graph = StateGraph(MessagesState).add_node("thinker", thinker).add_node("tools", tools)
    graph.add_edge(START, "thinker").add_conditional_edges("thinker", tools_condition)
    return graph.add_edge("tools", "thinker").compile()


def asked_in(state: MessagesState) -> list[Any]:
    """The requests for tools in the last message."""
    message = state["messages"][-1]
    assert isinstance(message, AIMessage)
    return message.tool_calls


async def test_handled_errors_keep_the_exception_and_what_the_model_was_told(
    gateway: GatewayDouble, llm: ChatOpenAI
) -> None:
    every = [fail, late, misread, look_up]
    graph = looping(llm, ToolNode(every, handle_tool_errors=True), every, "fail+late+misread+look_up")
    events = {event.name: event for event in await run(graph, gateway)}
    assert {name: event.error_type for name, event in events.items()} == {
        "fail": "raised",
        "late": "timed_out",
        "misread": "raised",
        "look_up": None,
    }
    assert events["fail"].error == "ZeroDivisionError: asked"
    assert {event.agent for event in events.values()} == {"thinker"}
    assert reported(list(events.values())) == told(gateway)


async def test_a_tool_that_handles_its_own_errors(gateway: GatewayDouble, llm: ChatOpenAI) -> None:
    @tool
    def refuse(word: str) -> str:
        """Refuse."""
        raise ToolException(f"not {word}")

    refuse.handle_tool_error = True
    strict = count.model_copy(update={"handle_validation_error": True})
    events = await run(boss(llm, [refuse, strict], "refuse+count"), gateway)
    [invalid, refused] = sorted(events, key=lambda event: event.name)
    assert (refused.error, refused.error_type) == ("not asked", "raised")
    assert invalid.error_type == "invalid_arguments"
    assert reported([refused, invalid]) == told(gateway)


async def test_tools_in_a_node_of_the_apps_own(gateway: GatewayDouble, llm: ChatOpenAI) -> None:
    """No callback fires for them: the answer is the only sign."""

    def own(state: MessagesState) -> dict[str, Any]:
        status: dict[str, Literal["success", "error"]] = {"look_up": "success"}
        return {
            "messages": [
                ToolMessage(
                    f"{call['name']}!", tool_call_id=call["id"], status=status.get(call["name"], "error")
                )
                for call in asked_in(state)
            ]
        }

    events = await run(looping(llm, own, [look_up, count], "look_up+ghost+count"), gateway)
    assert [(event.name, event.error_type) for event in events] == [
        ("look_up", None),
        ("ghost", "unknown_tool"),
        ("count", "raised"),
    ]
    assert reported(events) == told(gateway)


@pytest.mark.parametrize("entrance", ["ainvoke", "astream"])
async def test_tools_that_a_node_gives_the_bare_arguments(
    gateway: GatewayDouble, llm: ChatOpenAI, entrance: Entrance
) -> None:
    """Their runs carry no id, so what was asked for says which request each answers."""
    offered = {each.name: each for each in (sync_look_up, fail)}

    def answer(call: Any) -> ToolMessage:
        try:
            return ToolMessage(offered[call["name"]].invoke(call["args"]), tool_call_id=call["id"])
        except ZeroDivisionError:
            return ToolMessage("no", tool_call_id=call["id"], status="error")

    def own(state: MessagesState) -> dict[str, Any]:
        return {"messages": [answer(call) for call in asked_in(state)]}

    graph = looping(llm, own, list(offered.values()), "sync_look_up+sync_look_up+fail")
    events = await run(graph, gateway, entrance)
    assert [(event.name, event.agent, event.error) for event in events] == [
        ("sync_look_up", "thinker", None),
        ("sync_look_up", "thinker", None),
        ("fail", "thinker", "ZeroDivisionError: asked"),
    ]
    assert reported(events) == told(gateway)


async def test_a_tool_that_another_tool_runs_takes_no_request_of_the_model(
    gateway: GatewayDouble, llm: ChatOpenAI
) -> None:
    """Though it is given the very arguments of a request that still waits."""

    @tool
    async def ask(word: str) -> str:
        """Look it up."""
        return str(await look_up.ainvoke({"word": word}))

    async def in_turn(state: MessagesState) -> dict[str, Any]:
        offered = {each.name: each for each in (ask, look_up)}
        return {"messages": [await offered[call["name"]].ainvoke(call) for call in asked_in(state)]}

    events = await run(looping(llm, in_turn, [ask, look_up], "ask+look_up"), gateway)
    [inner] = [event for event in events if event.tool_call_id is None]
    assert inner.name == "look_up"
    assert reported([event for event in events if event is not inner]) == told(gateway)


@pytest.mark.parametrize("aio", [False, True])
async def test_agents_as_tools_and_their_own_tools(
    gateway: GatewayDouble, llm: ChatOpenAI, aio: bool
) -> None:
    graph = apps.boss_with_tools(llm, aio)
    events = await run(graph, gateway, "ainvoke" if aio else "invoke")
    assert Counter((event.agent, event.name) for event in events) == {
        ("boss", "ask_librarian"): 1,
        ("boss", "ask_clerk"): 2,
        ("boss", "search"): 1,
    }
    assert reported(events) == told(gateway)


async def test_a_nested_agent_asks_under_its_own_name(gateway: GatewayDouble, llm: ChatOpenAI) -> None:
    clerk = apps.worker(llm, "clerk", look_up, calls="look_up+look_up")
    graph = boss(llm, [apps.tool_of(clerk, "ask_clerk", True), look_up], "ask_clerk+look_up")
    events = await run(graph, gateway)
    assert Counter((event.agent, event.name) for event in events) == {
        ("clerk", "look_up"): 2,
        ("boss", "look_up"): 1,
        ("boss", "ask_clerk"): 1,
    }
    assert reported(events) == told(gateway)


@pytest.mark.parametrize(
    ("build", "asked"),
    [
        (apps.supervisor, {("supervisor", "transfer_to_maths"): 1, ("supervisor", "transfer_to_search"): 1}),
        (apps.swarm, {("alice", "transfer_to_bob"): 1}),
    ],
)
async def test_handoffs_are_tools(
    gateway: GatewayDouble, llm: ChatOpenAI, build: Any, asked: dict[tuple[str, str], int]
) -> None:
    events = await run(build(llm, True), gateway)
    assert Counter((event.agent, event.name) for event in events) == asked
    on_the_wire = {tool_call_id: text for (_, _, tool_call_id), text in told(gateway).items()}
    assert all(on_the_wire[event.tool_call_id or ""] == event.result for event in events)


async def test_a_retried_tool_is_reported_for_each_try(gateway: GatewayDouble, llm: ChatOpenAI) -> None:
    from langchain.agents.middleware import ToolRetryMiddleware

    middleware = [ToolRetryMiddleware(max_retries=1, initial_delay=0.0, jitter=False)]
    events = await run(boss(llm, [fail], "fail", middleware=middleware), gateway)
    assert [event.error for event in events] == ["ZeroDivisionError: asked"] * 2
    assert events[0].tool_call_id == events[1].tool_call_id
    [text] = told(gateway).values()
    assert [event.result for event in events] == [None, text]


async def test_an_interrupted_tool_is_reported_when_it_has_run(
    gateway: GatewayDouble, llm: ChatOpenAI
) -> None:
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.types import Command, interrupt

    @tool
    def ask_human(word: str) -> str:
        """Ask."""
        return str(interrupt(word))

    agent = boss(llm, [ask_human], "ask_human", checkpointer=InMemorySaver())
    graph = agent.with_config(callbacks=[LightningCallback()], configurable={"thread_id": "1"})
    scope = scope_at(gateway)
    with rollout_scope(scope):
        await graph.ainvoke(given("r1"))
        assert tools_in(scope) == []
        await graph.ainvoke(Command(resume="yes"))
    [event] = tools_in(scope)
    assert (event.agent, event.result, event.error) == ("boss", "yes", None)
    assert json.loads(event.arguments) == {"word": "asked"}
    assert reported([event]) == told(gateway)


async def test_a_cancelled_tool_is_neither_reported_nor_kept(gateway: GatewayDouble, llm: ChatOpenAI) -> None:
    started = asyncio.Event()

    @tool
    async def wait(word: str) -> str:
        """Never end."""
        started.set()
        await asyncio.sleep(60)
        return word

    callback = LightningCallback()
    scope = scope_at(gateway)
    with rollout_scope(scope):
        graph = boss(llm, [wait], "wait").with_config(callbacks=[callback])
        running = asyncio.create_task(graph.ainvoke(given("r1")))
        await started.wait()
        running.cancel()
        await asyncio.wait([running])
    assert tools_in(scope) == []
    assert callback.lightning_runs.open_count() == callback.lightning_tools.open_count() == 0


@pytest.mark.parametrize("whole", [True, False])
async def test_a_cancelled_model_call_is_not_kept(
    gateway: GatewayDouble, llm: ChatOpenAI, whole: bool
) -> None:
    """Neither with its graph nor where only the call is cancelled and the graph goes on."""

    async def node(state: MessagesState) -> dict[str, Any]:
        script = HumanMessage(mark(agent="node", slow="1"))
        async with asyncio.timeout(None if whole else 0.2):
            await llm.ainvoke([*state["messages"], script])
        raise AssertionError

    graph: Any = StateGraph(MessagesState).add_node("node", node).add_edge(START, "node").compile()
    callback = LightningCallback()
    with rollout_scope(scope_at(gateway)), pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2 if whole else None):
            await graph.with_config(callbacks=[callback]).ainvoke(given("r1"))
    assert callback.lightning_runs.open_count() == callback.lightning_tools.open_count() == 0


def asking(callback: LightningCallback, root: UUID, names: list[str]) -> None:
    """A model of this graph asks for tools."""
    model = uuid4()
    calls = [ToolCall(name=name, args={}, id=f"{model} {index}") for index, name in enumerate(names)]
    reply = AIMessage("", tool_calls=calls)
    callback.on_chat_model_start({}, [], run_id=model, parent_run_id=root)
    callback.on_llm_end(LLMResult(generations=[[ChatGeneration(message=reply)]]), run_id=model)
    for call in calls:
        tool_run, named = uuid4(), {"name": call["name"]}
        callback.on_tool_start(named, "", run_id=tool_run, parent_run_id=root, tool_call_id=call["id"])
        callback.on_tool_end("", run_id=tool_run)


def test_nodes_end_while_other_threads_ask() -> None:
    callback, root = LightningCallback(), uuid4()
    callback.on_chain_start({}, {}, run_id=root)
    asking(callback, root, ["look_up"] * 5_000)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(1) as pool:
            others = pool.submit(asking, callback, root, ["look_up"] * 2_000)
            while not others.done():
                node = uuid4()
                callback.on_chain_start({}, {}, run_id=node, parent_run_id=root)
                callback.on_chain_end({}, run_id=node)
            others.result()
    finally:
        sys.setswitchinterval(before)
    callback.on_chain_end({}, run_id=root)
    assert callback.lightning_runs.open_count() == callback.lightning_tools.open_count() == 0


class _Unreadable(dict[str, Any]):
    def values(self) -> Any:
        raise RuntimeError("not now")


def test_a_run_whose_output_cannot_be_read_has_ended_all_the_same() -> None:
    callback, root, tool = LightningCallback(), uuid4(), uuid4()
    callback.on_chain_start({}, {}, run_id=root)
    callback.on_tool_start({"name": "fail"}, "", run_id=tool, parent_run_id=root)
    callback.on_tool_error(ZeroDivisionError(), run_id=tool)
    with pytest.raises(RuntimeError, match="not now"):
        callback.on_chain_end(_Unreadable(), run_id=root)
    assert callback.lightning_runs.open_count() == callback.lightning_tools.open_count() == 0


async def test_a_block_around_the_model_asks_for_its_tools(gateway: GatewayDouble, llm: ChatOpenAI) -> None:
    bound = llm.bind_tools([look_up])

    async def node(state: MessagesState) -> dict[str, Any]:
        with lightning_core.agent("judge"):
            reply = await bound.ainvoke(
                [*state["messages"], HumanMessage(mark(agent="judge", calls="look_up"))]
            )
        return {"messages": [await look_up.ainvoke(reply.tool_calls[0])]}

    graph = StateGraph(MessagesState).add_node("node", node).add_edge(START, "node").compile()
    [event] = await run(graph, gateway)
    assert (event.agent, event.error) == ("judge", None)
    assert gateway.mistakes() == []


async def test_outside_a_rollout_nothing_is_kept(gateway: GatewayDouble, llm: ChatOpenAI) -> None:
    callback = LightningCallback()
    reply = await look_up.ainvoke(
        {"type": "tool_call", "name": "look_up", "args": {"word": "a"}, "id": "c1"},
        config={"callbacks": [callback]},
    )
    assert isinstance(reply, ToolMessage)
    scope = scope_at(gateway)
    with rollout_scope(scope):
        await look_up.ainvoke("b", config={"callbacks": [callback]})
    [event] = tools_in(scope)
    assert (event.agent, event.tool_call_id, event.arguments) == ("unnamed", None, "b")
    assert callback.lightning_tools.open_count() == 0
