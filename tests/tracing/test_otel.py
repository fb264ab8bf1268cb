"""An app that only OpenTelemetry instruments: its spans name its agents, and are stored beside its calls."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from opentelemetry import trace
from opentelemetry.instrumentation.openai import OpenAIInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Tracer

from lightning_core.dialects import get_dialect
from lightning_core.dialects.upstream import ChatRequest
from lightning_core.insight.trace import describes_call
from lightning_core.records.linking import link
from lightning_core.records.types import Attempt, Call, Event, Rollout, Span, Task
from lightning_core.runner.runner import Runner
from lightning_core.testing.truth import mark, read_marks
from lightning_core.tracing.openai_sdk import instrument
from lightning_core.tracing.otel import LightningSpanProcessor
from lightning_core.tracing.scope import Scope, agent, rollout_scope
from lightning_core.tracing.spans import current_span_agent
from tests.gateway.conftest import House, open_house
from tests.gateway.scripted import Line, ScriptedEngine
from tests.instrumenting import bare_afterwards

AGENTS = ("planner", "writer", "critic")
Solve = Callable[[Task], Awaitable[float]]


@pytest.fixture
def tagging() -> Iterator[None]:
    with instrument(lambda: None):
        yield


@pytest.fixture
def provider(tagging: None) -> Iterator[TracerProvider]:
    """The app's provider, to which it adds nothing of ours; OpenAI's SDK is instrumented."""
    provider = TracerProvider(shutdown_on_exit=False)
    with bare_afterwards():
        OpenAIInstrumentor().instrument(tracer_provider=provider)
        yield provider


@pytest.fixture
def tracer(provider: TracerProvider) -> Tracer:
    return provider.get_tracer("app")


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with open_house(ScriptedEngine(says=say)) as house:
        yield house


def say(request: ChatRequest, choice: int) -> Line:
    """Ask for a tool where there is one and it has not answered yet."""
    if request.tools and request.messages[-1]["role"] != "tool":
        function = {"name": "look_up", "arguments": "{}"}
        return Line(tool_calls=[{"id": f"call_{id(request)}", "type": "function", "function": function}])
    return Line(str(request.messages[-1]["content"]))


def inside(tracer: Tracer, name: str) -> Any:
    """An agent at work, as the conventions write it."""
    return tracer.start_as_current_span(f"invoke_agent {name}", attributes={"gen_ai.agent.name": name})


async def play(house: House, solve: Solve, rollouts: int = 1) -> tuple[list[Call], list[Event]]:
    """Run the app by the real runner; all that was stored."""
    names = [f"r{index}" for index in range(rollouts)]
    await house.store.enqueue(
        [Rollout(id=name, run_id="run", task=Task(input={"q": name}), group_id="g", step=0) for name in names]
    )

    def scope_for(attempt: Attempt) -> Scope:
        token = house.tokens.issue(attempt.rollout, attempt.number)
        return Scope(attempt.rollout.id, attempt.number, house.url, token)

    stop = asyncio.Event()
    runner = Runner(solve, house.store, run_id="run", scope_for=scope_for)
    serving = asyncio.create_task(runner.serve(stop))
    finished = await house.store.wait_finished(names, timeout=120)
    stop.set()
    await serving
    assert [rollout.error for rollout in finished] == [None] * rollouts
    calls = [call for of_one in (await house.store.get_calls(names)).values() for call in of_one]
    events = [event for of_one in (await house.store.get_events(names)).values() for event in of_one]
    return calls, link(calls, events)


def prompt(task: Task, name: str, nonce: str) -> list[Any]:
    truth = mark(rollout=task.input["q"], agent=name, nonce=nonce)
    return [{"role": "user", "content": truth}]


def ask(client: openai.OpenAI, road: int, messages: list[Any]) -> None:
    """One call by one of the roads that an app has."""
    match road % 4:
        case 0:
            client.chat.completions.create(model="m", messages=messages)
        case 1:
            for _ in client.chat.completions.create(model="m", messages=messages, stream=True):
                pass
        case 2:
            client.responses.create(model="m", input=messages)
        case _:
            for _ in client.responses.create(model="m", input=messages, stream=True):
                pass


async def ask_async(client: openai.AsyncOpenAI, road: int, messages: list[Any]) -> None:
    stream: Any
    match road % 4:
        case 0:
            await client.chat.completions.create(model="m", messages=messages)
        case 1:
            stream = await client.chat.completions.create(model="m", messages=messages, stream=True)
            _ = [chunk async for chunk in stream]
        case 2:
            await client.responses.create(model="m", input=messages)
        case _:
            stream = await client.responses.create(model="m", input=messages, stream=True)
            _ = [chunk async for chunk in stream]


async def test_two_hundred_calls_at_once_have_their_rollout_agent_and_span(
    house: House, tracer: Tracer
) -> None:
    """Each prompt says whose call it is; the agent is named by nothing but the span around it."""
    with openai.OpenAI(api_key="none", timeout=60) as client:
        async with openai.AsyncOpenAI(api_key="none", timeout=60) as aclient:

            def call(task: Task, number: int) -> None:
                name = AGENTS[number % 3]
                with inside(tracer, name):
                    ask(client, number // 2, prompt(task, name, f"{task.id}/{number}"))

            async def acall(task: Task, number: int) -> None:
                name = AGENTS[number % 3]
                with inside(tracer, name):
                    await ask_async(aclient, number // 2, prompt(task, name, f"{task.id}/{number}"))

            async def solve(task: Task) -> float:
                with ThreadPoolExecutor(4) as pool:
                    loop = asyncio.get_running_loop()
                    jobs = [loop.run_in_executor(pool, call, task, number) for number in range(0, 10, 2)]
                    await asyncio.gather(*jobs, *(acall(task, number) for number in range(1, 10, 2)))
                return 1.0

            calls, events = await play(house, solve, rollouts=20)
    assert len(calls) == 200
    for one in calls:
        marks = read_marks(one.request, get_dialect(one.dialect))
        assert (one.rollout_id, one.agent) == (marks["rollout"], marks["agent"])
    spans = [event for event in events if isinstance(event, Span)]
    assert len(spans) == 400
    described = {span.call_id: span for span in spans if describes_call(span)}
    assert described.keys() == {one.id for one in calls}
    by_id = {(span.trace_id, span.id): span for span in spans}
    for one in calls:
        span = described[one.id]
        around = by_id[span.trace_id, str(span.parent_id)]
        assert (span.rollout_id, span.agent) == (one.rollout_id, one.agent)
        assert (around.rollout_id, around.name) == (one.rollout_id, f"invoke_agent {one.agent}")


async def test_a_tool_s_span_finds_the_call_that_asked_and_a_failed_call_s_span_says_so(
    house: House, tracer: Tracer
) -> None:
    tool: Any = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}

    async def solve(task: Task) -> float:
        async with openai.AsyncOpenAI(api_key="none", max_retries=0) as client:
            with inside(tracer, "planner"):
                reply = await client.chat.completions.create(
                    model="m", messages=[{"role": "user", "content": "hi"}], tools=[tool]
                )
                (asked,) = reply.choices[0].message.tool_calls or ()
                attributes = {"gen_ai.tool.name": "look_up", "gen_ai.tool.call.id": asked.id}
                with tracer.start_as_current_span("execute_tool look_up", attributes=attributes):
                    pass
            house.engine.fails_after = 0
            with inside(tracer, "critic"), pytest.raises(openai.InternalServerError):
                await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
        return 1.0

    (asked, failed), events = await play(house, solve)
    assert (asked.agent, failed.agent, failed.status) == ("planner", "critic", "failed")
    spans = {event.name: event for event in events if isinstance(event, Span)}
    assert spans["execute_tool look_up"].call_id == asked.id
    assert spans["execute_tool look_up"].agent == "planner"
    broken = [
        event for event in events if isinstance(event, Span) and event.error and event.agent == "critic"
    ]
    assert any("out of memory" in str(span.error) for span in broken)
    assert [event["name"] for event in broken[-1].events] == ["exception"]


async def test_the_innermost_of_blocks_and_spans_names_the_call(house: House, tracer: Tracer) -> None:
    async def solve(task: Task) -> float:
        async with openai.AsyncOpenAI(api_key="none") as client:

            async def call() -> None:
                await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])

            with inside(tracer, "span"):
                with agent("block"):
                    await call()
                    with tracer.start_as_current_span("no name"):
                        await call()
                    with inside(tracer, "inner span"):
                        await call()
                        with tracer.start_as_current_span("no name"):
                            await call()
                await call()
            with tracer.start_as_current_span("named late") as span:
                span.set_attribute("gen_ai.agent.name", "late")
                await call()
            await call()
        return 1.0

    calls, _ = await play(house, solve)
    assert [call.agent for call in calls] == [
        *("block", "block", "inner span", "inner span", "span"),
        *("late", "unnamed"),
    ]


async def test_a_span_that_has_ended_names_no_call_though_it_is_still_current(
    house: House, tracer: Tracer
) -> None:
    async def solve(task: Task) -> float:
        async with openai.AsyncOpenAI(api_key="none") as client:
            with agent("judge"), trace.use_span(tracer.start_span("outer")):
                ended = tracer.start_span("invoke_agent writer", attributes={"gen_ai.agent.name": "writer"})
                with trace.use_span(ended):
                    ended.end()
                    await client.chat.completions.create(
                        model="m", messages=[{"role": "user", "content": "hi"}]
                    )
        return 1.0

    calls, _ = await play(house, solve)
    assert [call.agent for call in calls] == ["judge"]


async def test_a_span_is_kept_by_the_rollout_it_started_in_wherever_it_ends(provider: TracerProvider) -> None:
    tracer = provider.get_tracer("app")
    one, two = (Scope(name, 1, "http://nowhere", "t") for name in ("one", "two"))
    outside = tracer.start_span("outside")
    with rollout_scope(one):
        moved, never_ended = tracer.start_span("moved"), tracer.start_span("never ended")
    with rollout_scope(two):
        with tracer.start_as_current_span("own"):
            moved.end()
        outside.end()
    assert [span.name for span in one.seen] == ["moved"]
    assert [(span.name, span.parent_id) for span in two.seen] == [("own", None)]
    never_ended.end()


def test_a_provider_is_covered_once_whatever_else_adds_the_processor(tagging: None) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(LightningSpanProcessor())
    scope = Scope("r", 1, "http://nowhere", "t")
    with (
        instrument(lambda: None),
        rollout_scope(scope),
        provider.get_tracer("app").start_as_current_span("s"),
    ):
        pass
    assert [span.name for span in scope.seen] == ["s"]


def test_without_tagging_only_the_line_of_the_app_keeps_spans() -> None:
    provider, covered = (TracerProvider(shutdown_on_exit=False) for _ in range(2))
    covered.add_span_processor(LightningSpanProcessor())
    scope = Scope("r", 1, "http://nowhere", "t")
    for one in (provider, covered):
        with rollout_scope(scope), one.get_tracer("app").start_as_current_span("s"):
            pass
    assert len(scope.seen) == 1


def test_every_kind_of_attribute_is_kept(provider: TracerProvider) -> None:
    scope = Scope("r", 1, "http://nowhere", "t")
    given = {"text": "a", "many": (1, 2), "number": 0.5, "yes": True}
    with (
        rollout_scope(scope),
        provider.get_tracer("app").start_as_current_span("s", attributes=given) as span,
    ):
        span.add_event("happened", {"k": "v"}, timestamp=2_500_000_000)
    (kept,) = scope.seen
    assert isinstance(kept, Span)
    service = provider.resource.attributes["service.name"]
    source = {"service.name": service, "otel.scope.name": "app"}
    assert kept.attributes == {**given, "many": [1, 2], **source}
    assert kept.events == [{"name": "happened", "time": 2.5, "attributes": {"k": "v"}}]
    assert kept.error is None
    assert 0 <= kept.ended_at - kept.started_at < 60


GLOBAL = """
import sys
from lightning_core.tracing.openai_sdk import instrument
from lightning_core.tracing.scope import Scope, rollout_scope
scope = Scope("r", 1, "http://nowhere", "t")
def app():
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    trace.set_tracer_provider(TracerProvider())
def span():
    from opentelemetry import trace
    with rollout_scope(scope), trace.get_tracer("app").start_as_current_span("s"):
        pass
"""


@pytest.mark.parametrize(
    "order",
    [
        "app(); instrument(lambda: None); span()",
        "instrument(lambda: None); app(); span()",
        "instrument(lambda: None).uninstall(); instrument(lambda: None); app(); span()",
        "app(); instrument(lambda: None).uninstall(); instrument(lambda: None); span()",
    ],
)
def test_the_global_provider_is_covered_before_or_after(order: str) -> None:
    code = f"{GLOBAL}\n{order}\nprint([span.name for span in scope.seen])"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert printed.stdout.strip() == "['s']"


@pytest.mark.parametrize("imported", ["import opentelemetry.sdk.trace; ", ""])
def test_the_app_may_set_its_own_provider_though_the_environment_names_one(imported: str) -> None:
    order = f"{imported}instrument(lambda: None); app(); span()"
    code = f"{GLOBAL}\n{order}\nprint([span.name for span in scope.seen])"
    named = {**os.environ, "OTEL_PYTHON_TRACER_PROVIDER": "sdk_tracer_provider"}
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=named
    )
    assert (printed.stdout.strip(), printed.stderr) == ("['s']", "")  # nor is it told that it may not


def test_an_app_without_opentelemetry_is_not_given_it() -> None:
    code = (
        f"{GLOBAL}\nfrom lightning_core.tracing.spans import current_span_agent\ninstrument(lambda: None)\n"
        "print(current_span_agent(), [name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert printed.stdout.strip() == "None []"


def test_without_a_span_nobody_is_named() -> None:
    assert current_span_agent() is None
