"""Run one app in many rollouts at once, by each way that CrewAI offers."""

from __future__ import annotations

import asyncio
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

from crewai import Crew
from crewai.types.streaming import CrewStreamingOutput
from lightning_crewai import attach

from lightning_core.testing.server import GatewayDouble
from lightning_core.testing.truth import mistakes
from lightning_core.tracing.scope import Scope, rollout_scope
from plugins.crewai.tests.apps import Api, App, Build, Kit, arguments

Entrance = Literal["kickoff", "kickoff_async", "akickoff"]
ENTRANCES: tuple[Entrance, ...] = ("kickoff", "kickoff_async", "akickoff")
ROLLOUTS = 4


def scope_at(server: GatewayDouble, rollout: str = "r1") -> Scope:
    return Scope(rollout, 1, server.url, f"token-of-{rollout}")


async def play(
    build: Build,
    server: GatewayDouble,
    entrance: Entrance,
    *,
    stream: bool = False,
    api: Api = "completions",
    litellm: bool = False,
) -> list[Scope]:
    """All rollouts at once, each with an attached app of its own, in threads or in tasks of one loop."""
    kits = [Kit(f"r{index}", stream, api, litellm) for index in range(ROLLOUTS)]
    scopes = [scope_at(server, kit.rollout) for kit in kits]
    rollouts = list(zip(scopes, kits, strict=True))
    if entrance == "kickoff":
        with ThreadPoolExecutor(ROLLOUTS) as pool:
            loop = asyncio.get_running_loop()
            jobs = [loop.run_in_executor(pool, _thread, build, scope, kit) for scope, kit in rollouts]
            await asyncio.gather(*jobs)
    else:
        await asyncio.gather(*(_task(build, scope, kit, entrance) for scope, kit in rollouts))
    return scopes


def kick_off(app: App) -> None:
    """To its end, whether it streams or not."""
    outcome = app.kickoff(**_given(app))
    if isinstance(outcome, CrewStreamingOutput):
        for _ in outcome:
            pass


async def enter(app: App, entrance: Entrance) -> None:
    """The same by any entrance, `kickoff` in a thread."""
    if entrance == "kickoff":
        await asyncio.to_thread(kick_off, app)
        return
    outcome = await getattr(app, entrance)(**_given(app))
    if isinstance(outcome, CrewStreamingOutput):
        async for _ in outcome:
            pass


def _thread(build: Build, scope: Scope, kit: Kit) -> None:
    with rollout_scope(scope):
        kick_off(attach(build(kit)))


async def _task(build: Build, scope: Scope, kit: Kit, entrance: Entrance) -> None:
    with rollout_scope(scope):
        await enter(attach(build(kit)), entrance)


def _given(app: App) -> dict[str, Any]:
    return {"inputs": {"topic": "bird", "template": "{topic}"}} if isinstance(app, Crew) else arguments(app)


def expect(server: GatewayDouble, per_rollout: dict[str, int], rollouts: int = ROLLOUTS) -> None:
    """Every tag is right, and each agent made just as many calls as it should have."""
    tagged = server.tagged()
    assert mistakes(tagged) == []
    assert Counter(tag.agent for tag in tagged) == Counter(
        {name: count * rollouts for name, count in per_rollout.items()}
    )
    answered = Counter(request.tagged().call for request in server.seen if request.status == 200)
    assert set(answered.values()) == {1}
