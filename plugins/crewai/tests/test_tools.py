"""Each run of a tool is reported once: by whom, with what, how it went, and which request it answers."""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from crewai import BaseLLM, Crew, Process
from crewai.agents import step_executor
from crewai.events import ToolUsageErrorEvent, crewai_event_bus
from crewai.events.base_events import BaseEvent
from crewai.tools import BaseTool, tool
from crewai.tools.tool_failure import ToolExecutionFailedError, ToolFailure, ToolFailurePolicy
from lightning_crewai import attach, detach

from lightning_core.testing.server import GatewayDouble
from lightning_core.tracing.scope import Scope, rollout_scope
from lightning_core.types import ToolEvent
from plugins.crewai.tests import apps
from plugins.crewai.tests.apps import Kit
from plugins.crewai.tests.playing import ENTRANCES, ROLLOUTS, Entrance, play, scope_at

SCRIPT = "draw+draw+shatter+count+garble,draw+nothing+draw,wait"
RUNS = {
    ("draw", None): 4,
    ("shatter", "raised"): 1,
    ("count", "invalid_arguments"): 1,
    ("garble", "invalid_arguments"): 1,
    ("nothing", "unknown_tool"): 1,
    ("wait", "timed_out"): 1,
}


@tool("draw")
def draw() -> str:
    """Draw something that nobody else has drawn."""
    return uuid.uuid4().hex


@tool("shatter")
def shatter() -> str:
    """Fail."""
    raise KeyError("mine")


@tool("count")
def count(number: int) -> str:
    """Count."""
    return "counted"


@tool("garble")
def garble() -> str:
    """Is never asked for in JSON."""
    return "garbled"


@tool("wait")
def wait() -> str:
    """Wait for too long."""
    raise TimeoutError("too long")


TOOLS = [draw, shatter, count, garble, wait]


def with_tools(kit: Kit) -> apps.App:
    backstory = kit.prompt("writer", calls=SCRIPT, broken="garble")
    writer = apps.Agent(role="writer", goal="Help.", backstory=backstory, llm=kit.llm(), tools=TOOLS)
    return kit.crew(writer)


def runs(scope: Scope) -> list[ToolEvent]:
    return [event for event in scope.seen if isinstance(event, ToolEvent)]


def asked(server: GatewayDouble) -> dict[str, dict[str, str]]:
    """What each id stands for, as the next requests tell the model: the truth about every run."""
    found: dict[str, dict[str, str]] = {}
    for request in server.seen:
        truth = request.tagged().marks
        for item in _items(request.body):
            found.setdefault(item.pop("id"), {**truth}).update(item)
    return found


def _items(body: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """Requests and results of tools in a body of the chat or the Responses API."""
    for item in body.get("input", ()):
        if item.get("type") == "function_call":
            yield {"id": item["call_id"], "name": item["name"], "arguments": item["arguments"]}
        elif item.get("type") == "function_call_output":
            yield {"id": item["call_id"], "result": item["output"]}
    for message in body.get("messages", ()):
        for call in message.get("tool_calls") or ():
            yield {"id": call["id"], **call["function"]}
        if message["role"] == "tool":
            yield {"id": message["tool_call_id"], "result": message["content"]}


def expect_runs(server: GatewayDouble, scopes: list[Scope], per_rollout: Mapping[Any, int]) -> None:
    """Every run is told of as the model was told of it, under the id by which the model asked."""
    truth = asked(server)
    for scope in scopes:
        for run in runs(scope):
            assert run.tool_call_id is not None
            told = truth.pop(run.tool_call_id)
            assert (scope.rollout_id, run.rollout_id) == (told["rollout"], told["rollout"])
            assert (run.agent, run.framework) == (told["agent"], "crewai")
            assert (run.name, run.arguments) == (told["name"], told["arguments"])
            assert run.result == told["result"]
            assert (run.error is None) == (run.error_type is None)
            assert run.started_at <= run.ended_at
        assert Counter((run.name, run.error_type) for run in runs(scope)) == Counter(per_rollout)
    assert truth == {}


@pytest.mark.parametrize("entrance", ENTRANCES)
@pytest.mark.parametrize(
    ("api", "stream"), [("completions", False), ("completions", True), ("responses", False)]
)
async def test_every_run_is_reported_under_the_id_that_asked_for_it(
    gateway: GatewayDouble, entrance: Entrance, api: apps.Api, stream: bool
) -> None:
    scopes = await play(with_tools, gateway, entrance, api=api, stream=stream)
    expect_runs(gateway, scopes, RUNS)
    errors = {run.name: run.error for run in runs(scopes[0]) if run.error is not None}
    assert errors["shatter"] == "KeyError: 'mine'"
    assert errors["wait"] == "TimeoutError: too long"
    assert "valid integer" in errors["count"]
    assert "JSON" in errors["garble"]


@pytest.mark.parametrize("entrance", ENTRANCES)
async def test_each_run_is_the_agents_that_asked_however_they_nest(
    gateway: GatewayDouble, entrance: Entrance
) -> None:
    delegated = {"delegate_work_to_coworker": 1, "ask_question_to_coworker": 1, "look_up": 2}
    scopes = await play(apps.hierarchical, gateway, entrance)
    expect_runs(gateway, scopes, {(name, None): number for name, number in delegated.items()})
    scopes = await play(apps.parallel_tools, gateway, entrance)
    assert Counter(run.agent for scope in scopes for run in runs(scope)) == {
        "boss": 5 * ROLLOUTS,
        "clerk": 3 * ROLLOUTS,
    }


class Declare(BaseTool):
    """A tool that says itself that it failed."""

    name: str = "declare"
    description: str = "Declare."

    def _run(self) -> Any:
        return ToolFailure(message="not found", code="E404")


def one_agent(*tools: BaseTool, calls: str, **more: Any) -> Crew:
    return Kit("r1").crew(Kit("r1").agent("writer", calls=calls, tools=list(tools), **more))


def test_a_failure_that_a_tool_declares_and_a_limit_that_is_reached(gateway: GatewayDouble) -> None:
    @tool("once")
    def once() -> str:
        """Can be used once."""
        return "used"

    once.max_usage_count = 1
    scope = scope_at(gateway)
    with rollout_scope(scope):
        attach(one_agent(once, Declare(), calls="once,once,declare")).kickoff()
    expect_runs(gateway, [scope], {("once", None): 1, ("once", "raised"): 1, ("declare", "raised"): 1})
    assert [run.error and run.error[:9] for run in runs(scope)] == [None, "Tool 'onc", "not found"]


@pytest.mark.parametrize("policy", ToolFailurePolicy)
def test_whatever_the_app_does_about_failures(gateway: GatewayDouble, policy: ToolFailurePolicy) -> None:
    scope = scope_at(gateway)
    crew = attach(one_agent(shatter, calls="shatter", tool_failure_policy=policy))
    with rollout_scope(scope):
        if policy is ToolFailurePolicy.RAISE:
            with pytest.raises(ToolExecutionFailedError):
                crew.kickoff()
        else:
            crew.kickoff()
    [run] = runs(scope)
    assert (run.error, run.error_type) == ("KeyError: 'mine'", "raised")


@pytest.mark.parametrize("name", ["inner", "outer"])
def test_what_a_model_runs_by_itself_within_a_tool_is_not_the_tools(
    gateway: GatewayDouble, name: str
) -> None:
    """A function that `LLM.call` was given and that failed; the tool made do without it."""
    kit = Kit("r1")

    def fails() -> str:
        raise KeyError("inner")

    @tool("outer")
    def outer() -> str:
        """Ask a model that has a tool of its own."""
        offered: Any = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}]
        prompt = kit.prompt("writer", calls=name)
        return str(kit.llm().call(prompt, tools=offered, available_functions={name: fails}))

    scope = scope_at(gateway)
    with rollout_scope(scope):
        attach(kit.crew(kit.agent("writer", calls="outer", tools=[outer]))).kickoff()
    [run] = runs(scope)
    assert (run.name, run.error, run.error_type) == ("outer", None, None)
    assert run.result == asked(gateway)[run.tool_call_id or ""]["result"]


class OwnEvent(BaseEvent):
    """An app's own, which is called as one of CrewAI's and says less."""

    type: str = "tool_usage_error"
    tool_name: str


def test_whatever_a_tool_emits_it_goes_on(gateway: GatewayDouble, caplog: pytest.LogCaptureFixture) -> None:
    @tool("emit")
    def emit() -> str:
        """Say of itself that it failed: in an event without the error, and in one with a text for it."""
        crewai_event_bus.emit(None, OwnEvent(tool_name="emit"))
        crewai_event_bus.emit(None, ToolUsageErrorEvent(tool_name="emit", tool_args={}, error="said so"))
        raise ValueError("later")

    scope = scope_at(gateway)
    with rollout_scope(scope):
        attach(one_agent(emit, calls="emit")).kickoff()
    [run] = runs(scope)
    assert (run.error, run.error_type) == ("ValueError: later", "raised")
    assert [record.message[:19] for record in caplog.records if "could not" in record.message] == [
        "could not learn fro"
    ]


class Words(BaseLLM):
    """A model without tool calls: it says what it is given, in turn, and asks for tools in words."""

    said: list[str]

    def call(self, *args: Any, **kwargs: Any) -> str:
        return self.said.pop(0)


def _word(name: str, arguments: str) -> str:
    return f"Thought: I need it.\nAction: {name}\nAction Input: {arguments}"


def test_a_tool_that_is_asked_for_in_words_has_the_reply_for_an_id(gateway: GatewayDouble) -> None:
    said = [
        _word("draw", "{}"),
        _word("Shater", "{}"),
        _word("count", '{"number": "many"}'),
        _word("nothing", "{}"),
        "Thought: I know.\nFinal Answer: done",
    ]
    llm = Words(model="words", said=[*said])
    worker = apps.Agent(role="worker", goal="Help.", backstory="None.", llm=llm, tools=TOOLS)
    scope = scope_at(gateway)
    with rollout_scope(scope):
        attach(Kit("r1").crew(worker)).kickoff()
    assert [(run.name, run.error_type) for run in runs(scope)] == [
        ("draw", None),
        ("Shater", "raised"),  # near enough for CrewAI
        ("count", "invalid_arguments"),
        ("nothing", "unknown_tool"),
    ]
    assert [run.arguments for run in runs(scope)] == ["{}", "{}", '{"number": "many"}', "{}"]
    assert {(run.agent, run.tool_call_id) for run in runs(scope)} == {("worker", None)}
    assert [run.reply for run in runs(scope)] == said[:4]


def test_the_steps_of_a_plan_report_their_tools_too(gateway: GatewayDouble) -> None:
    worker = attach(Kit("r1").agent("worker"))
    scope = scope_at(gateway)
    with rollout_scope(scope):
        for number, name in enumerate(("draw", "shatter", "nothing")):
            step_executor.execute_single_native_tool_call(
                {"id": f"call_{number}", "function": {"name": name, "arguments": "{}"}},
                available_functions={"draw": draw.run, "shatter": shatter.run},
                original_tools=[draw, shatter],
                structured_tools=None,
                tools_handler=None,
                agent=worker,
                task=None,
                crew=None,
                event_source=worker,
            )
    assert [(run.tool_call_id, run.error_type) for run in runs(scope)] == [
        ("call_0", None),
        ("call_1", "raised"),
        ("call_2", "unknown_tool"),
    ]
    assert runs(scope)[1].result == "Error executing tool: 'mine'"


def test_a_run_that_ends_after_its_rollout_is_nobodys(gateway: GatewayDouble) -> None:
    reached, over = threading.Event(), threading.Event()

    @tool("linger")
    def linger() -> str:
        """Wait until the rollout is over."""
        reached.set()
        over.wait(60)
        return "late"

    kit = Kit("r1", base_url=f"{gateway.url}/v1")
    crew = attach(kit.crew(kit.agent("writer", calls="linger", tools=[linger])))
    scope = scope_at(gateway)
    with rollout_scope(scope):
        thread = threading.Thread(target=crew.kickoff)
        thread.start()
        assert reached.wait(60)
    over.set()
    thread.join()
    assert [tag.rollout for tag in gateway.tagged()] == ["r1", None]
    assert runs(scope) == []


def test_nothing_is_reported_once_it_is_detached(gateway: GatewayDouble) -> None:
    crew = attach(one_agent(draw, calls="draw"))
    scope = scope_at(gateway)
    detach()
    with rollout_scope(scope):
        crew.kickoff()
    assert runs(scope) == []


def test_the_manager_that_crewai_makes_itself_has_a_name_too(gateway: GatewayDouble) -> None:
    kit = Kit("r1")
    crew = Crew(
        agents=[kit.agent(apps.COWORKER)],
        tasks=[apps.work()],
        manager_llm=kit.llm(),
        process=Process.hierarchical,
    )
    with rollout_scope(scope_at(gateway)):
        attach(crew).kickoff()
    assert {request.headers["x-lightning-agent"] for request in gateway.seen} == {"Crew%20Manager"}
