"""Whatever the crew's shape and however it is kicked off, each call carries its own agent and rollout."""

from __future__ import annotations

import asyncio
from collections import Counter
from importlib.util import find_spec

import pytest

from lightning_core.testing.server import GatewayDouble
from plugins.crewai.tests import apps
from plugins.crewai.tests.playing import ENTRANCES, ROLLOUTS, Entrance, expect, play

BUILDS = list(enumerate(apps.CALLS))


@pytest.mark.parametrize(
    ("build", "entrance", "stream"),
    [
        pytest.param(build, entrance, bool((i + j) % 2), id=f"{build.__name__}-{entrance}")
        for i, build in BUILDS
        for j, entrance in enumerate(ENTRANCES)
    ],
)
async def test_every_call_is_named(
    gateway: GatewayDouble, build: apps.Build, entrance: Entrance, stream: bool
) -> None:
    """Each shape by each entrance, its replies whole and streamed in turn."""
    await play(build, gateway, entrance, stream=stream)
    expect(gateway, apps.CALLS[build])


@pytest.mark.parametrize(
    ("build", "entrance"),
    [pytest.param(build, ("kickoff", "akickoff")[i % 2], id=build.__name__) for i, build in BUILDS],
)
async def test_every_call_of_the_responses_api_is_named(
    gateway: GatewayDouble, build: apps.Build, entrance: Entrance
) -> None:
    await play(build, gateway, entrance, api="responses")
    expect(gateway, apps.CALLS[build])


@pytest.mark.parametrize("entrance", ENTRANCES)
@pytest.mark.parametrize("build", [apps.sequential, apps.async_tasks], ids=lambda build: build.__name__)
async def test_every_call_by_litellm_is_named(
    gateway: GatewayDouble, build: apps.Build, entrance: Entrance
) -> None:
    if find_spec("litellm") is None:
        pytest.skip("litellm is not installed")
    apps.Kit("none", litellm=True).llm()  # CrewAI can't import litellm in several threads at once
    await play(build, gateway, entrance, litellm=True)
    expect(gateway, apps.CALLS[build])


async def test_all_shapes_and_entrances_at_once_never_mix(gateway: GatewayDouble) -> None:
    in_threads = (apps.hierarchical, apps.async_tasks)
    await asyncio.gather(
        *(play(build, gateway, "akickoff") for build in apps.CALLS),
        *(play(build, gateway, "kickoff") for build in in_threads),
    )
    builds = [*apps.CALLS, *in_threads]
    expect(gateway, sum((Counter(apps.CALLS[build]) for build in builds), Counter()))


@pytest.mark.parametrize("entrance", ENTRANCES)
async def test_the_sdks_retries_keep_the_call_id(gateway: GatewayDouble, entrance: Entrance) -> None:
    def build(kit: apps.Kit) -> apps.App:
        return kit.crew(kit.agent("solo", fail=2, key=kit.rollout))

    await play(build, gateway, entrance)
    expect(gateway, {"solo": 3})
    assert len({request.tagged().call for request in gateway.seen}) == ROLLOUTS
