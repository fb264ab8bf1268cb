"""Bare clients, threads, blocks and runs inside runs: the innermost scope names the call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from typing import Any

import pytest
from agents import (
    Agent,
    AgentsException,
    GuardrailFunctionOutput,
    InputGuardrailTripwireTriggered,
    MaxTurnsExceeded,
    Model,
    RunContextWrapper,
    Runner,
    custom_span,
    function_tool,
    get_current_span,
    input_guardrail,
    trace,
)
from openai import OpenAI

from lightning_core.records.types import UNNAMED
from lightning_core.testing.server import GatewayDouble
from lightning_core.testing.truth import mark
from lightning_core.tracing.scope import agent, current_scope, rollout_scope
from plugins.openai_agents.tests import tracing
from plugins.openai_agents.tests.apps import CALLS, look_up, member
from plugins.openai_agents.tests.playing import DIALECTS, ENTRANCES, arun, expect, open_model, play, scope_at
from plugins.openai_agents.tests.tracing import Recorder


def bare(client: OpenAI, name: str, rollout: str = "r1") -> None:
    message = {"role": "user", "content": mark(rollout=rollout, agent=name)}
    client.chat.completions.create(model="any", messages=[message])  # type: ignore[list-item]


def with_tool(model: Model, function: Callable[..., Any], name: str = "writer") -> Agent[str]:
    """An agent that calls the tool once, between two calls of the model."""
    tool = function_tool(function, name_override="act", failure_error_function=None)
    return member(model, name, {"calls": "act"}, tools=[tool])


async def test_a_bare_client_in_a_tool_is_the_agents(gateway: GatewayDouble) -> None:
    with OpenAI(api_key="none") as client:

        def act(context: RunContextWrapper[str]) -> str:
            bare(client, "writer", context.context)
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(lambda _: bare(client, "writer", context.context), range(2)))
            return "done"

        for entrance in ENTRANCES:
            await play(lambda model: with_tool(model, act), gateway, entrance, rollouts=4)
    expect(gateway, {"writer": 5}, rollouts=16)


@pytest.mark.parametrize("change", [tracing.as_it_is, tracing.disabled, tracing.nothing_installed])
async def test_a_block_in_a_tool_wins_and_one_around_the_run_does_not(
    gateway: GatewayDouble, recorder: Recorder, model: Model, change: Callable[[Recorder], None]
) -> None:
    change(recorder)
    inner = member(model, "leaf")
    with OpenAI(api_key="none") as client:

        async def act(context: RunContextWrapper[str]) -> str:
            bare(client, "writer")
            with agent("block"):
                bare(client, "block")
                await Runner.run(inner, "Do it.", context=context.context)
                bare(client, "block")
            bare(client, "writer")
            return "done"

        with rollout_scope(scope_at(gateway)), agent("around"):
            await Runner.run(with_tool(model, act), "Do it.", context="r1")
            bare(client, "around")
    expect(gateway, {"writer": 4, "block": 2, "leaf": 1, "around": 1}, rollouts=1)


async def test_a_block_before_the_agents_first_request_wins_too(gateway: GatewayDouble, model: Model) -> None:
    with OpenAI(api_key="none") as client:

        @input_guardrail(run_in_parallel=False)
        async def check(context: Any, guarded: Any, question: Any) -> GuardrailFunctionOutput:
            bare(client, "writer")
            with agent("judge"):
                bare(client, "judge")
            return GuardrailFunctionOutput(output_info=None, tripwire_triggered=False)

        writer = member(model, "writer", input_guardrails=[check])
        with agent("around"):
            await arun(writer, scope_at(gateway))
    expect(gateway, {"writer": 2, "judge": 1}, rollouts=1)


async def test_a_run_in_the_thread_of_a_tool_is_named_by_itself(gateway: GatewayDouble) -> None:
    async def nested(rollout: str) -> None:
        async with open_model("responses") as own:
            await Runner.run(member(own, "leaf"), "Do it.", context=rollout)

    def act(context: RunContextWrapper[str]) -> str:
        asyncio.run(nested(context.context))
        return "done"

    await play(lambda model: with_tool(model, act), gateway)
    expect(gateway, {"writer": 2, "leaf": 1})


async def test_calls_between_the_events_of_a_stream_are_not_the_agents(
    gateway: GatewayDouble, model: Model
) -> None:
    with OpenAI(api_key="none") as client, rollout_scope(scope_at(gateway)):
        result = Runner.run_streamed(member(model, "writer"), "Do it.", context="r1")
        seen = 0
        async for _ in result.stream_events():
            bare(client, UNNAMED)
            with agent("reader"):
                bare(client, "reader")
            seen += 1
    expect(gateway, {"writer": 1, UNNAMED: seen, "reader": seen}, rollouts=1)


async def test_a_run_that_fails_or_is_left_leaves_no_name_behind(
    gateway: GatewayDouble, model: Model
) -> None:
    def broken() -> str:
        raise KeyError("mine")

    @input_guardrail
    async def trip(context: Any, guarded: Any, question: Any) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput(output_info=None, tripwire_triggered=True)

    endless = member(model, "endless", {"calls": ",".join(["look_up"] * 9)}, tools=[look_up])
    failing: list[tuple[Agent[str], type[Exception]]] = [
        (with_tool(model, broken, "broken"), AgentsException),
        (member(model, "tripped", {"slow": 0.1}, input_guardrails=[trip]), InputGuardrailTripwireTriggered),
        (endless, MaxTurnsExceeded),
    ]
    with OpenAI(api_key="none") as client, rollout_scope(scope_at(gateway)):
        for bad, error in failing:
            with pytest.raises(error):
                await Runner.run(bad, "Do it.", context="r1", max_turns=3)
            bare(client, UNNAMED)
            result = Runner.run_streamed(bad, "Do it.", context="r1", max_turns=3)
            with pytest.raises(error):
                _ = [event async for event in result.stream_events()]
            bare(client, UNNAMED)
        left = Runner.run_streamed(member(model, "left"), "Do it.", context="r1")
        left.cancel()
        _ = [event async for event in left.stream_events()]
        bare(client, UNNAMED)
    assert gateway.mistakes() == []
    assert gateway.agents()[UNNAMED] == 7
    assert get_current_span() is None


async def test_a_span_handed_to_a_place_without_context_names_the_call(
    gateway: GatewayDouble, model: Model
) -> None:
    with OpenAI(api_key="none") as client:

        async def act(context: RunContextWrapper[str]) -> str:
            span = get_current_span()

            def elsewhere() -> None:
                with rollout_scope(scope_at(gateway)), custom_span("mine", parent=span):
                    bare(client, "writer")

            Context().run(elsewhere)
            return "done"

        await arun(with_tool(model, act), scope_at(gateway))
    expect(gateway, {"writer": 3}, rollouts=1)


async def test_an_apps_own_trace_and_spans_around_and_inside_change_nothing(
    gateway: GatewayDouble, model: Model
) -> None:
    with OpenAI(api_key="none") as client, trace("mine") as whole:

        async def act(context: RunContextWrapper[str]) -> str:
            with custom_span("inner", parent=whole):
                bare(client, "writer")
            return "done"

        with custom_span("outer"):
            await arun(with_tool(model, act), scope_at(gateway))
            with rollout_scope(scope_at(gateway)):
                bare(client, UNNAMED)
    expect(gateway, {"writer": 3, UNNAMED: 1}, rollouts=1)


async def test_all_entrances_shapes_and_models_at_once_never_mix(gateway: GatewayDouble) -> None:
    await asyncio.gather(
        *(
            play(build, gateway, entrance, dialect, rollouts=2)
            for entrance in ENTRANCES
            for dialect in DIALECTS
            for build in CALLS
        )
    )
    assert gateway.mistakes() == []
    assert len(gateway.seen) == 2 * 4 * 2 * sum(sum(calls.values()) for calls in CALLS.values())
    assert current_scope() is None
