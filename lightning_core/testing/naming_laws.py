"""The laws of naming: each call carries its own rollout, agent and call id, whatever runs beside it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import Any

import pytest

from lightning_core.records.types import UNNAMED
from lightning_core.testing.framework import (
    ENTRANCES,
    KEY,
    ROLLOUTS,
    TASK,
    Entrance,
    Stage,
    TeamMember,
    member,
)
from lightning_core.testing.truth import mark
from lightning_core.tracing.scope import Scope, agent, rollout_scope

_PULL = (
    "lightning_who must answer from the context in which the request is built, such as a ContextVar that is "
    "set around each agent's work: never from a global, the last agent entered, or a thread's own state."
)
_INNERMOST = (
    "Give each agent's Who the enter_order() of the moment it went to work, and answer for the innermost: "
    "blocks and agents inside a tool are entered later, blocks around the app earlier."
)
_LEFT = "Take the name back in a `finally` when the agent's work ends, fails or is abandoned."
_CONTEXT = "The framework leaves the caller's context here: open lightning_core.tracing.scope.rollout_of(it)."
_SDK = "One call of the app must be one request() of the OpenAI client, whose retries the SDK makes itself."
_LEAVE = "The adapter must not tag, route or rewrite requests: it only answers who is calling."

entrances = pytest.mark.parametrize("entrance", ENTRANCES)


def look_up(question: str) -> str:
    """Look it up."""
    return "found"


def team(stage: Stage, rollout: str, *, asks: bool = False) -> list[TeamMember]:
    """As much as the framework can do: an agent that uses a tool between two calls, and one after it.

    If it `asks`, the tool calls a model too, after a while in which others work.
    """

    def look_up_and_ask(question: str) -> str:
        """Look it up, and ask."""
        time.sleep(0.03)
        stage.bare(rollout)("writer")
        return "found"

    if "tools" in stage.framework.lacks:
        writer = member(rollout, "writer")
    else:
        tool = look_up_and_ask if asks else look_up
        writer = member(rollout, "writer", tool, calls=tool.__name__)
    return [writer] if "several agents" in stage.framework.lacks else [writer, member(rollout, "checker")]


def calls(stage: Stage, *, asks: bool = False) -> dict[str, int]:
    """How many calls each agent of the team makes."""
    writes = 1 if "tools" in stage.framework.lacks else 2 + asks
    return {"writer": writes} | ({} if "several agents" in stage.framework.lacks else {"checker": 1})


@pytest.mark.asyncio
@entrances
async def test_many_rollouts_at_once_never_mix(stage: Stage, entrance: Entrance) -> None:
    stage.require(entrance)
    await stage.play(lambda rollout: team(stage, rollout, asks=True), entrance)
    stage.expect(calls(stage, asks=True), ROLLOUTS, f"{_PULL} {_CONTEXT}")


@pytest.mark.asyncio
async def test_loops_and_threads_at_once_never_mix(stage: Stage) -> None:
    able = [entrance for entrance in ENTRANCES if entrance not in stage.framework.lacks]
    places = [(entrance, threads) for entrance in able for threads in {entrance == "sync", True}]
    await asyncio.gather(
        *(
            stage.play(lambda rollout: team(stage, rollout, asks=True), entrance, 6, threads=threads)
            for entrance, threads in places
        )
    )
    stage.expect(calls(stage, asks=True), 6 * len(places), f"{_PULL} {_CONTEXT}")


@pytest.mark.asyncio
async def test_one_app_serves_many_rollouts(stage: Stage) -> None:
    stage.require("async", "shared apps")

    async def one(app: Any, rollout: str) -> None:
        with rollout_scope(stage.scope(rollout)):
            await stage.enter(app, "async", mark(rollout=rollout))

    async with stage.opened([TeamMember("writer", mark(agent="writer"))]) as app:
        await asyncio.gather(*(one(app, f"r{index}") for index in range(ROLLOUTS)))
    stage.expect({"writer": 1}, ROLLOUTS, f"Keep nothing of a run on the app itself. {_PULL}")


@pytest.mark.asyncio
async def test_threads_and_pools_of_a_tool_are_the_agents(stage: Stage) -> None:
    stage.require("async", "tools")
    bare = stage.bare()
    with ThreadPoolExecutor(2) as shared:
        list(shared.map(str, range(2)))  # its threads are older than the rollout

        def look_up(question: str) -> str:
            """Look it up."""
            thread = threading.Thread(target=bare, args=("writer",))
            thread.start()
            with ThreadPoolExecutor(2) as own:
                list(own.map(bare, ["writer"] * 2))
            list(shared.map(bare, ["writer"] * 2))
            thread.join()
            bare("writer")
            return "found"

        async with stage.opened([member("r1", "writer", look_up, calls="look_up")]) as app:
            with rollout_scope(stage.scope()):
                await stage.enter(app, "async")
    stage.expect({"writer": 8}, 1, f"Threads inherit context variables, nothing else. {_PULL}")


@pytest.mark.asyncio
async def test_the_innermost_scope_names_the_call(stage: Stage) -> None:
    stage.require("async", "tools")
    bare = stage.bare()
    async with stage.opened([member("r1", "leaf")]) as inner:

        async def look_up(question: str) -> str:
            """Look it up."""
            bare("writer")
            with agent("block"):
                bare("block")
                await stage.enter(inner, "async")
                bare("block")
            bare("writer")
            return "found"

        async with stage.opened([member("r1", "writer", look_up, calls="look_up")]) as app:
            with rollout_scope(stage.scope()), agent("around"):
                bare("around")
                await stage.enter(app, "async")
                bare("around")
    stage.expect({"writer": 4, "block": 2, "leaf": 1, "around": 2}, 1, _INNERMOST)


@pytest.mark.asyncio
@entrances
async def test_retries_keep_the_call_id(stage: Stage, entrance: Entrance) -> None:
    stage.require(entrance)
    await stage.play(lambda rollout: [member(rollout, "writer", fail=2, key=rollout)], entrance)
    stage.expect({"writer": 3}, ROLLOUTS, _SDK)
    if len({request.call for request in stage.gateway.tagged()}) != ROLLOUTS:
        stage.fail("a call that was retried after a 500 has several ids", _SDK)


@pytest.mark.asyncio
async def test_a_time_out_and_a_retry_are_one_call(stage: Stage) -> None:
    entrance: Entrance = "sync" if "async" in stage.framework.lacks else "async"
    await stage.play(
        lambda rollout: [member(rollout, "writer", slow=30, late=1, key=rollout)],
        entrance,
        2,
        timeout=2.0,
        max_retries=4,
    )
    tagged = stage.gateway.tagged()
    if stage.gateway.mistakes() or len(tagged) < 4 or len({request.call for request in tagged}) != 2:
        problem = f"two calls that timed out once and were retried arrived as {tagged}"
        stage.fail(problem, f"open_model must heed `timeout` and `max_retries`. {_SDK}")


@pytest.mark.asyncio
@entrances
@pytest.mark.parametrize("fails", [False, True], ids=["well", "failed"])
async def test_an_app_that_has_ended_leaves_no_name(stage: Stage, entrance: Entrance, fails: bool) -> None:
    stage.require(entrance)

    def late_call(scope: Scope) -> None:
        stage.bare(scope.rollout_id)(UNNAMED)

    marks = {"fail": 9} if fails else {}
    await stage.play(
        lambda rollout: [member(rollout, "writer", key=rollout, **marks)],
        entrance,
        4,
        after=late_call,
        fails=fails,
    )
    if fails and not any(request.status == 500 for request in stage.gateway.seen):
        stage.fail("no call of the failing app arrived", "See what run(), stream() or run_sync() raises.")
    stage.expect({"writer": 1, UNNAMED: 1}, 4, _LEFT)


@pytest.mark.asyncio
async def test_between_a_streams_items_and_after_leaving_it_nobody_is_named(stage: Stage) -> None:
    stage.require("stream")
    items, bare = 0, stage.bare()
    with rollout_scope(stage.scope()):
        for leave in (False, True):
            async with stage.opened([member("r1", "writer")]) as app:
                stream: AsyncIterator[object] = stage.framework.stream(app, TASK)
                async with aclosing(stream):  # type: ignore[type-var]
                    async for _ in stream:
                        items += 1
                        bare(UNNAMED)
                        if leave:
                            break
            bare(UNNAMED)
    if not items:
        stage.fail("stream() yields nothing", "Yield what the framework gives on the way.")
    seen = stage.gateway.agents()["writer"]
    stage.expect({"writer": seen, UNNAMED: items + 2}, 1, f"What the reader does is not the agent's. {_LEFT}")


@pytest.mark.asyncio
async def test_outside_a_rollout_nothing_is_touched(stage: Stage) -> None:
    entrance: Entrance = "sync" if "async" in stage.framework.lacks else "async"
    stage.require(entrance)
    async with stage.framework.open_model(api_key=KEY, base_url=f"{stage.hosted.url}/v1") as model:
        app = stage.framework.build(model, [member("none", "writer")])
        if entrance == "async":
            await stage.enter(app, "async")
        else:
            await asyncio.to_thread(stage.framework.run_sync, app, TASK)
    if stage.gateway.seen:
        stage.fail("a call outside any rollout went to the gateway", _LEAVE)
    stage.expect_untouched({"writer"}, _LEAVE)


@pytest.mark.asyncio
@entrances
async def test_an_untrained_agent_keeps_its_own_endpoint(stage: Stage, entrance: Entrance) -> None:
    stage.require(entrance)
    several = "several agents" not in stage.framework.lacks
    await stage.play(
        lambda rollout: team(stage, rollout),
        entrance,
        4,
        agents=("writer",) if several else ("another",),
        api_key=KEY,
        base_url=f"{stage.hosted.url}/v1",
    )
    if several:
        stage.expect({"writer": calls(stage)["writer"]}, 4, _PULL)
    elif stage.gateway.seen:
        stage.fail("an agent that is not trained went to the gateway", _PULL)
    stage.expect_untouched({"checker"} if several else {"writer"}, _LEAVE)
