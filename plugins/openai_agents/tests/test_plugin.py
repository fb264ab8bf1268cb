"""The distribution: found by its entry point, light to load, installed and taken out again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, Model, get_current_span, set_trace_provider
from agents.tracing import AgentSpanData, get_trace_provider
from agents.tracing.provider import DefaultTraceProvider
from lightning_openai_agents import attach, install, uninstall
from lightning_openai_agents.provider import NamingProvider

import lightning_core
from lightning_core.plugins import load_plugins
from lightning_core.testing.readme import run_example
from lightning_core.testing.server import GatewayDouble
from plugins.openai_agents.tests.apps import member
from plugins.openai_agents.tests.playing import arun, expect, scope_at
from plugins.openai_agents.tests.tracing import OwnProvider, Recorder


def python(program: str, folder: Path) -> None:
    """Run a program in a fresh process; it must not fail."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr


def test_installed_before_the_sdk_it_is_in_place_right_after_the_import(tmp_path: Path) -> None:
    python(
        "import sys\n"
        "from lightning_openai_agents import install, uninstall\n"
        "finders = list(sys.meta_path)\n"
        "install(); install()\n"
        "assert len(sys.meta_path) == len(finders) + 1\n"
        "import agents\n"
        "from lightning_openai_agents.provider import NamingProvider\n"
        "provider = agents.tracing.get_trace_provider()\n"
        "assert isinstance(provider, NamingProvider)\n"
        "assert not isinstance(provider.inner, NamingProvider)\n"
        "assert sys.meta_path == finders\n"
        "uninstall()\n"
        "assert agents.tracing.get_trace_provider() is provider.inner",
        tmp_path,
    )


def test_taken_back_before_the_sdk_is_imported_it_leaves_the_sdk_alone(tmp_path: Path) -> None:
    python(
        "from lightning_openai_agents import install, uninstall\n"
        "install(); uninstall()\n"
        "import agents, sys\n"
        "assert 'lightning_openai_agents.provider' not in sys.modules\n"
        "assert type(agents.tracing.get_trace_provider()).__module__ == 'agents.tracing.provider'",
        tmp_path,
    )


def test_an_apps_own_package_of_that_name_is_not_the_sdk(tmp_path: Path) -> None:
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "__init__.py").write_text("from agents import tracing\n")
    (tmp_path / "agents" / "tracing.py").write_text("def get_current_span(): raise AssertionError\n")
    python(
        "import agents\n"
        "from lightning_core.errors import InstrumentationError, PluginError\n"
        "from lightning_core.plugins import load_plugins\n"
        "from lightning_openai_agents import install, uninstall\n"
        "plugins = load_plugins(['openai_agents'])\n"
        "assert plugins.who() is None\n"
        "try: plugins.attach(agents)\n"
        "except PluginError: pass\n"
        "else: raise AssertionError\n"
        "try: install()\n"
        "except InstrumentationError as error: assert 'AgentSpanData' in str(error), error\n"
        "else: raise AssertionError\n"
        "uninstall()",
        tmp_path,
    )


def test_it_goes_around_the_apps_provider_once_and_gives_it_back(recorder: Recorder) -> None:
    own = OwnProvider(DefaultTraceProvider())
    set_trace_provider(own)
    install()
    install()
    placed = get_trace_provider()
    assert isinstance(placed, NamingProvider)
    assert placed.inner is own
    assert placed.made == 0  # the app still finds what it offers
    uninstall()
    uninstall()
    assert get_trace_provider() is own


def _around_ours() -> OwnProvider:
    return OwnProvider(get_trace_provider())


def _in_place_of_ours() -> OwnProvider:
    return OwnProvider(DefaultTraceProvider())


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("change", [_around_ours, _in_place_of_ours])
async def test_whatever_the_app_sets_since_everything_is_taken_back(
    bare_gateway: GatewayDouble, model: Model, change: Callable[[], OwnProvider], again: bool
) -> None:
    writer = member(model, "writer")
    install()
    await arun(writer, scope_at(bare_gateway))
    own = change()
    set_trace_provider(own)
    if again:
        install()
        await arun(writer, scope_at(bare_gateway))
    uninstall()
    assert get_trace_provider() is own
    await arun(writer, scope_at(bare_gateway))
    data = AgentSpanData("writer")
    noted = dict(vars(data))
    own.create_span(data)
    assert vars(data) == noted


def test_a_provider_that_was_taken_out_and_is_set_again_gets_another_around_it(recorder: Recorder) -> None:
    install()
    kept = get_trace_provider()
    uninstall()
    set_trace_provider(kept)
    install()
    placed = get_trace_provider()
    assert isinstance(placed, NamingProvider)
    assert placed.inner is kept
    uninstall()
    assert get_trace_provider() is kept


def test_at_exit_the_last_traces_have_the_time_the_sdk_gives_them(recorder: Recorder) -> None:
    install()
    get_trace_provider().shutdown()
    uninstall()
    [seconds] = recorder.stopped
    assert seconds == pytest.approx(5.0, abs=0.5)
    NamingProvider(OwnProvider(DefaultTraceProvider())).shutdown()  # takes no time-out


def test_everything_else_is_passed_on(recorder: Recorder) -> None:
    provider: Any = NamingProvider(get_trace_provider())
    provider.set_processors([])
    provider.register_processor(recorder)
    provider.force_flush()
    assert provider.gen_trace_id().startswith("trace_")
    assert provider.gen_span_id().startswith("span_")
    assert provider.gen_group_id().startswith("group_")
    assert provider.time_iso().startswith("2")
    with provider.create_trace("mine") as whole:
        assert provider.get_current_trace() is whole
    with pytest.raises(AttributeError, match="nothing"):
        provider.nothing  # noqa: B018


async def test_attach_is_the_same_as_install(bare_gateway: GatewayDouble, model: Model) -> None:
    writer = member(model, "writer")
    for one_line in (attach, lightning_core.attach):
        assert one_line(writer) is writer
        assert isinstance(get_trace_provider(), NamingProvider)
        with lightning_core.agent("around"):
            await arun(writer, scope_at(bare_gateway))
        uninstall()
    expect(bare_gateway, {"writer": 2}, rollouts=1)
    assert get_current_span() is None


def test_attach_leaves_what_is_no_agent(recorder: Recorder) -> None:
    for target in (object(), Agent):
        with pytest.raises(lightning_core.LightningError, match=r"no plugin takes .*'openai_agents'"):
            load_plugins(["openai_agents"]).attach(target)
    assert not isinstance(get_trace_provider(), NamingProvider)


def test_the_readmes_example_runs(bare_gateway: GatewayDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_AGENTS_DISABLE_TRACING", "1")  # else the SDK sends its traces to its maker
    readme = Path(__file__).parents[1] / "README.md"
    question = "<<calls=ask_clerk>>"
    assert run_example(readme, bare_gateway, ["desk"], question=question, answer="it is done") == 1.0
    assert bare_gateway.agents() == {"desk": 2, "clerk": 1}
