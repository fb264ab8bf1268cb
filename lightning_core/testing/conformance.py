"""The conformance suite: an adapter's tests import all of it and say how an app is run in their framework.

    from lightning_core.testing.conformance import *

    class Mine(Framework):
        plugin, modules = "mine", ("my_framework",)
        ...

    @pytest.fixture
    def framework():
        return Mine()

Here are the laws of the package (found by its entry point, light to load, silent about what is not its
own) and of tool events (each run of a tool is reported once, by its own agent, in its own rollout);
`naming_laws` has those of names. See docs/plugins/write-an-adapter.md.

Needs pytest, pytest-asyncio and openai: the extra `testing`.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

import pytest
from openai import DefaultHttpxClient, OpenAI

from lightning_core.plugins import load_plugins
from lightning_core.records.types import ToolEvent
from lightning_core.testing.framework import (
    ENTRANCES,
    ROLLOUTS,
    Ability,
    Entrance,
    Framework,
    Stage,
    TeamMember,
    member,
)
from lightning_core.testing.naming_laws import (
    look_up,
    test_a_time_out_and_a_retry_are_one_call,
    test_an_app_that_has_ended_leaves_no_name,
    test_an_untrained_agent_keeps_its_own_endpoint,
    test_between_a_streams_items_and_after_leaving_it_nobody_is_named,
    test_loops_and_threads_at_once_never_mix,
    test_many_rollouts_at_once_never_mix,
    test_one_app_serves_many_rollouts,
    test_outside_a_rollout_nothing_is_touched,
    test_retries_keep_the_call_id,
    test_the_innermost_scope_names_the_call,
    test_threads_and_pools_of_a_tool_are_the_agents,
)
from lightning_core.testing.server import serving
from lightning_core.tracing.openai_sdk import instrument
from lightning_core.tracing.scope import Scope

__all__ = [
    "Ability",
    "Framework",
    "TeamMember",
    "framework",
    "stage",
    "test_a_time_out_and_a_retry_are_one_call",
    "test_a_tool_that_raised_is_reported_with_its_error",
    "test_an_app_that_has_ended_leaves_no_name",
    "test_an_untrained_agent_keeps_its_own_endpoint",
    "test_between_a_streams_items_and_after_leaving_it_nobody_is_named",
    "test_every_tool_run_is_reported",
    "test_loading_and_asking_it_imports_no_framework",
    "test_loops_and_threads_at_once_never_mix",
    "test_many_rollouts_at_once_never_mix",
    "test_one_app_serves_many_rollouts",
    "test_outside_a_rollout_nothing_is_touched",
    "test_retries_keep_the_call_id",
    "test_the_innermost_scope_names_the_call",
    "test_the_plugin_is_found_by_its_entry_point",
    "test_threads_and_pools_of_a_tool_are_the_agents",
]

_ASK = """
import sys
from lightning_core.errors import PluginError
from lightning_core.plugins import load_plugins

plugins = load_plugins([{plugin!r}])
assert not plugins.broken, plugins.broken
assert plugins.who() is None, f"lightning_who answers {{plugins.who()}} though nothing runs"
try:
    plugins.attach(object())
except PluginError as error:
    assert "no plugin takes" in str(error), error
else:
    raise AssertionError("lightning_attach takes any object; return None for what is not the framework's")
heavy = {heavy!r} & {{name.partition(".")[0] for name in sys.modules}}
assert not heavy, f"loading or asking the plugin imports {{heavy}}; look in sys.modules instead"
"""


@pytest.fixture
def framework() -> Framework:
    """To be given by the adapter's own tests."""
    pytest.fail(
        "define a fixture `framework` in this module, below the import of the laws; it returns an instance "
        "of your subclass of lightning_core.testing.conformance.Framework",
        pytrace=False,
    )


@pytest.fixture
def stage(framework: Framework) -> Iterator[Stage]:
    """The framework between two servers, its plugin loaded, all requests tagged."""
    plugins = load_plugins([framework.plugin])
    if framework.plugin in plugins.broken:
        pytest.fail(str(plugins.broken[framework.plugin]), pytrace=False)
    client = OpenAI(api_key="none", max_retries=0, http_client=DefaultHttpxClient(verify=False))
    with serving() as gateway, serving() as hosted, instrument(plugins.who), client:
        yield Stage(framework, gateway, hosted, client)


def test_the_plugin_is_found_by_its_entry_point(framework: Framework) -> None:
    plugins = load_plugins([framework.plugin])
    hooks = {info.name: info.hooks for info in plugins.list()}
    if framework.plugin not in hooks:
        pytest.fail(
            f"no plugin {framework.plugin!r}: {dict(plugins.broken) or 'nothing of that name is installed'}; "
            "install the distribution whose pyproject.toml has [project.entry-points.lightning_core]",
            pytrace=False,
        )
    if "lightning_who" not in hooks[framework.plugin]:
        pytest.fail(
            f"plugin {framework.plugin!r} has no lightning_who, only {hooks[framework.plugin]}; "
            "mark it with @lightning_core.hookimpl",
            pytrace=False,
        )


def test_loading_and_asking_it_imports_no_framework(framework: Framework) -> None:
    program = _ASK.format(plugin=framework.plugin, heavy={*framework.modules, "openai"})
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    if done.returncode:
        pytest.fail(done.stderr, pytrace=False)


# tool events ----------------------------------------------------------------------------------
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


def events(stage: Stage, scope: Scope) -> list[ToolEvent]:
    """The runs of an app's own tools that were reported in a rollout."""
    answer = stage.framework.answer_tool
    return [event for event in scope.seen if isinstance(event, ToolEvent) and event.name != answer]


@pytest.mark.asyncio
@pytest.mark.parametrize("entrance", ENTRANCES)
async def test_every_tool_run_is_reported(stage: Stage, entrance: Entrance) -> None:
    stage.require(entrance, "tools", "tool events")

    other = compute if entrance == "sync" else compute_slowly  # which needs a loop that runs
    script = f"look_up+{other.__name__},look_up"

    def cast(rollout: str) -> list[TeamMember]:
        return [member(rollout, "writer", look_up, other, calls=script)]

    for scope in await stage.play(cast, entrance):
        check(stage, scope, {"look_up": 2, other.__name__: 1})
        for event in events(stage, scope):
            said = "found" if event.name == "look_up" else "computed"
            if event.error is not None or event.error_type is not None:
                stage.fail(f"a tool that ran well is reported with an error: {event!r}", _REPORT)
            if said not in (event.result or "") or "asked" not in event.arguments:
                stage.fail(f"the result or the arguments of a tool are not reported: {event!r}", _REPORT)
    asked = [tool for tool in stage.gateway.asked if tool.name != stage.framework.answer_tool]
    if len(asked) != 3 * ROLLOUTS:
        stage.fail(f"{len(asked)} tools were asked for, not {3 * ROLLOUTS}", _REPORT)


@pytest.mark.asyncio
@pytest.mark.parametrize("entrance", ENTRANCES)
async def test_a_tool_that_raised_is_reported_with_its_error(stage: Stage, entrance: Entrance) -> None:
    stage.require(entrance, "tools", "tool events")
    scopes = await stage.play(
        lambda rollout: [member(rollout, "writer", broken, calls="broken")], entrance, 4, fails=True
    )
    for scope in scopes:
        check(stage, scope, {"broken": 1})
        for event in events(stage, scope):
            if event.error_type != "raised" or "mine" not in (event.error or ""):
                stage.fail(f"the error of a tool is not reported: {event!r}", _REPORT)


def check(stage: Stage, scope: Scope, runs: dict[str, int]) -> None:
    """Checks that each run has one event: of the right tool, agent, rollout and request."""
    reported = events(stage, scope)
    named = Counter(event.name for event in reported)
    if named != runs:
        stage.fail(f"tools run in a rollout: {runs}; reported: {dict(named)}", _REPORT)
    asked = {
        (tool.name, tool.tool_call_id)
        for tool in stage.gateway.asked
        if tool.marks["rollout"] == scope.rollout_id and tool.name != stage.framework.answer_tool
    }
    if (found := {(event.name, event.tool_call_id) for event in reported}) != asked:
        stage.fail(f"tool_call_ids are {found}, the model's were {asked}", "Hand on the model's own ids.")
    for event in reported:
        if (event.agent, event.rollout_id, event.attempt) != ("writer", scope.rollout_id, scope.attempt):
            stage.fail(f"reported under the wrong agent, rollout or attempt: {event!r}", _REPORT)
        if not event.framework or event.ended_at < event.started_at:
            stage.fail(f"without its framework or its times: {event!r}", _REPORT)
