from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from agents import Model, set_trace_provider
from agents.tracing.processors import BackendSpanExporter
from agents.tracing.provider import DefaultTraceProvider
from lightning_openai_agents import install, uninstall

from lightning_core.plugins import load_plugins
from lightning_core.testing.server import GatewayDouble, serving
from lightning_core.tracing.openai_sdk import instrument
from plugins.openai_agents.tests.playing import open_model
from plugins.openai_agents.tests.tracing import Recorder


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    """Tracing is on and ends here: the SDK's exporter, which sends traces to its maker, must not be made."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_AGENTS_DISABLE_TRACING", raising=False)
    monkeypatch.delattr(BackendSpanExporter, "__init__")
    monkeypatch.delattr(BackendSpanExporter, "export")
    recorder = Recorder()
    provider = DefaultTraceProvider()
    provider.register_processor(recorder)
    set_trace_provider(provider)
    yield recorder
    set_trace_provider(DefaultTraceProvider())


@pytest.fixture
def bare_gateway(recorder: Recorder) -> Iterator[GatewayDouble]:
    """Where the calls of trained agents arrive; the plugin is loaded and nothing is attached."""
    plugins = load_plugins(["openai_agents"])
    assert plugins.broken == {}
    with serving() as server, instrument(plugins.who):
        yield server


@pytest.fixture
def gateway(bare_gateway: GatewayDouble) -> Iterator[GatewayDouble]:
    """The same after `install()`."""
    install()
    yield bare_gateway
    uninstall()


@pytest.fixture
async def model() -> AsyncIterator[Model]:
    """A chat completions model that names no endpoint."""
    async with open_model("chat") as model:
        yield model
