"""Handoffs, agents as tools and guardrails: however they are run, each call carries its own agent."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest
from agents import RunConfig

from lightning_core.testing.server import GatewayDouble
from plugins.openai_agents.tests import tracing
from plugins.openai_agents.tests.apps import CALLS, Build, everything, handoffs, member
from plugins.openai_agents.tests.playing import DIALECTS, ENTRANCES, ROLLOUTS, Dialect, Entrance, expect, play
from plugins.openai_agents.tests.tracing import Recorder


@pytest.mark.parametrize(
    ("build", "entrance", "dialect"),
    [
        pytest.param(build, entrance, DIALECTS[(i + j) % 2], id=f"{build.__name__}-{entrance}")
        for i, build in enumerate(CALLS)
        for j, entrance in enumerate(ENTRANCES)
    ],
)
async def test_every_call_is_named(
    gateway: GatewayDouble, build: Build, dialect: Dialect, entrance: Entrance
) -> None:
    """Each shape by each entrance, in both dialects in turn."""
    await play(build, gateway, entrance, dialect)
    expect(gateway, CALLS[build])


@pytest.mark.parametrize(
    ("entrance", "dialect"), [("run_streamed", "chat"), ("run_sync in threads", "responses")]
)
@pytest.mark.parametrize(
    ("change", "traced"),
    [
        (tracing.as_it_is, True),
        (tracing.disabled, False),
        (tracing.no_processors, False),
        (tracing.own_before, True),
        (tracing.own_after, True),
        (tracing.own_around, True),
        (tracing.own_after_and_disabled, False),
        (tracing.own_after_and_installed_again, True),
        (tracing.nothing_installed, True),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_whatever_the_app_does_about_tracing(
    gateway: GatewayDouble,
    recorder: Recorder,
    change: Callable[[Recorder], None],
    traced: bool,
    dialect: Dialect,
    entrance: Entrance,
) -> None:
    change(recorder)
    await play(everything, gateway, entrance, dialect)
    expect(gateway, CALLS[everything])
    spans = Counter(dict.fromkeys(CALLS[everything], ROLLOUTS) if traced else {})
    assert Counter(recorder.agents) == spans


@pytest.mark.parametrize("entrance", ENTRANCES)
async def test_with_tracing_off_for_the_run(
    gateway: GatewayDouble, recorder: Recorder, entrance: Entrance
) -> None:
    await play(everything, gateway, entrance, "responses", config=RunConfig(tracing_disabled=True))
    expect(gateway, CALLS[everything])
    assert recorder.agents == []


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("entrance", ["run_streamed", "run_sync in threads"])
async def test_the_sdks_retries_keep_the_call_id(
    gateway: GatewayDouble, entrance: Entrance, dialect: Dialect
) -> None:
    await play(lambda model: member(model, "writer", {"fail": 2}), gateway, entrance, dialect)
    assert [seen.status for seen in gateway.seen].count(500) == 2 * ROLLOUTS
    expect(gateway, {"writer": 3})


async def test_half_of_the_rollouts_may_trace_and_the_other_half_not(gateway: GatewayDouble) -> None:
    off = RunConfig(tracing_disabled=True)
    await asyncio.gather(
        play(handoffs, gateway, "run", "chat"),
        play(handoffs, gateway, "run_streamed", "responses", config=off),
    )
    expect(gateway, CALLS[handoffs], rollouts=2 * ROLLOUTS)
