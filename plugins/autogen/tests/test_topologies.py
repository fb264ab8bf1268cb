"""Whatever the team's shape and however it is run, each call carries its own agent and rollout."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from lightning_core.testing.server import GatewayDouble
from plugins.autogen.tests import apps
from plugins.autogen.tests.playing import Entrance, expect, play


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
