"""Whatever the team's shape and however it is run, each call carries its own agent and rollout."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from lightning_core.testing.server import GatewayDouble
from plugins.autogen.tests import apps
from plugins.autogen.tests.playing import ENTRANCES, ROLLOUTS, Entrance, expect, play


@pytest.mark.parametrize(("entrance", "stream"), [("run", False), ("run_stream", True)])
@pytest.mark.parametrize("build", apps.CALLS, ids=lambda build: build.__name__)
async def test_every_call_is_named(
    gateway: GatewayDouble, build: apps.Build, entrance: Entrance, stream: bool
) -> None:
    await play(build, gateway, entrance, stream=stream)
    expect(gateway, apps.CALLS[build])


@pytest.mark.parametrize("build", apps.CALLS, ids=lambda build: build.__name__)
async def test_every_call_is_named_in_threads(gateway: GatewayDouble, build: apps.Build) -> None:
    await play(build, gateway, "run_stream", "threads")
    expect(gateway, apps.CALLS[build])


async def test_all_shapes_at_once_in_tasks_and_threads_never_mix(gateway: GatewayDouble) -> None:
    await asyncio.gather(
        *(play(build, gateway, "run_stream", "tasks", stream=True) for build in apps.CALLS),
        *(play(build, gateway, "run", "threads") for build in (apps.tools, apps.society)),
    )
    builds = [*apps.CALLS, apps.tools, apps.society]
    expect(gateway, sum((Counter(apps.CALLS[build]) for build in builds), Counter()))


@pytest.mark.parametrize("entrance", ENTRANCES)
async def test_the_sdks_retries_keep_the_call_id_in_a_team(
    gateway: GatewayDouble, entrance: Entrance
) -> None:
    def build(kit: apps.Kit) -> apps.App:
        return kit.agent("solo", fail=2, key=kit.rollout)

    await play(build, gateway, entrance)
    expect(gateway, {"solo": 3})
    assert len({request.call for request in gateway.tagged()}) == ROLLOUTS
