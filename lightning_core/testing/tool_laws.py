"""The laws of tool events: each run of a tool is reported once, by its own agent, in its own rollout."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from lightning_core.testing.framework import Member
from lightning_core.testing.naming_laws import look_up
from lightning_core.testing.stage import ENTRANCES, ROLLOUTS, Entrance, Stage, member
from lightning_core.tracing.scope import Scope
from lightning_core.types import ToolEvent

_REPORT = (
    "Call lightning_core.tracing.tools.report_tool() where the framework says that a tool has ended, well or "
    "not, in the context that ran it; or declare lacks = {'tool events': 'why'}."
)


def compute(question: str) -> str:
    """Compute it."""
    return "computed"


async def compute_slowly(question: str) -> str:
    """Compute it, and let others work meanwhile."""
    await asyncio.sleep(0.01)
    return "computed"


def broken(question: str) -> str:
    """Break."""
    raise KeyError("mine")


def events(scope: Scope) -> list[ToolEvent]:
    """The runs of tools that were reported in a rollout."""
    return [event for event in scope.seen if isinstance(event, ToolEvent)]


@pytest.mark.asyncio
@pytest.mark.parametrize("entrance", ENTRANCES)
async def test_every_tool_run_is_reported(stage: Stage, entrance: Entrance) -> None:
    stage.require(entrance, "tools", "tool events")

    other = compute if entrance == "sync" else compute_slowly  # which needs a loop that runs
    script = f"look_up+{other.__name__},look_up"

    def cast(rollout: str) -> list[Member]:
        return [member(rollout, "writer", look_up, other, calls=script)]

    for scope in await stage.play(cast, entrance):
        check(stage, scope, {"look_up": 2, other.__name__: 1})
        for event in events(scope):
            said = "found" if event.name == "look_up" else "computed"
            if event.error is not None or event.error_type is not None:
                stage.fail(f"a tool that ran well is reported with an error: {event!r}", _REPORT)
            if said not in (event.result or "") or "asked" not in event.arguments:
                stage.fail(f"the result or the arguments of a tool are not reported: {event!r}", _REPORT)
    if len(stage.gateway.asked) != 3 * ROLLOUTS:
        stage.fail(f"{len(stage.gateway.asked)} tools were asked for, not {3 * ROLLOUTS}", _REPORT)


@pytest.mark.asyncio
@pytest.mark.parametrize("entrance", ENTRANCES)
async def test_a_tool_that_raised_is_reported_with_its_error(stage: Stage, entrance: Entrance) -> None:
    stage.require(entrance, "tools", "tool events")
    scopes = await stage.play(
        lambda rollout: [member(rollout, "writer", broken, calls="broken")], entrance, 4, fails=True
    )
    for scope in scopes:
        check(stage, scope, {"broken": 1})
        for event in events(scope):
            if event.error_type != "raised" or "mine" not in (event.error or ""):
                stage.fail(f"the error of a tool is not reported: {event!r}", _REPORT)


def check(stage: Stage, scope: Scope, runs: dict[str, int]) -> None:
    """Of each run one event: of the right tool, agent, rollout and request."""
    reported = events(scope)
    named = Counter(event.name for event in reported)
    if named != runs:
        stage.fail(f"tools run in a rollout: {runs}; reported: {dict(named)}", _REPORT)
    asked = {
        (tool.name, tool.tool_call_id)
        for tool in stage.gateway.asked
        if tool.marks["rollout"] == scope.rollout_id
    }
    if (found := {(event.name, event.tool_call_id) for event in reported}) != asked:
        stage.fail(f"tool_call_ids are {found}, the model's were {asked}", "Hand on the model's own ids.")
    for event in reported:
        if (event.agent, event.rollout_id, event.attempt) != ("writer", scope.rollout_id, scope.attempt):
            stage.fail(f"reported under the wrong agent, rollout or attempt: {event!r}", _REPORT)
        if not event.framework or event.ended_at < event.started_at:
            stage.fail(f"without its framework or its times: {event!r}", _REPORT)
