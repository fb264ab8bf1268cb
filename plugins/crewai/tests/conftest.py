"""CrewAI is imported here, with what it must know by then: send nothing home, keep files apart."""

from __future__ import annotations

import atexit
import importlib
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator

import pytest
from lightning_crewai import detach

from lightning_core.plugins import load_plugins
from lightning_core.testing.server import GatewayDouble, serving
from lightning_core.tracing.openai_sdk import instrument

_STORAGE = tempfile.mkdtemp(prefix="crewai-")
atexit.register(shutil.rmtree, _STORAGE, ignore_errors=True)
os.environ.update(
    CREWAI_DISABLE_TELEMETRY="true", CREWAI_TRACING_ENABLED="false", CREWAI_STORAGE_DIR=_STORAGE
)
with warnings.catch_warnings():
    # The import system's own complaint about a lazy package of CrewAI, at the first import only.
    warnings.filterwarnings("ignore", "Cannot set an attribute on 'crewai.rag'", ImportWarning)
    importlib.import_module("crewai")


def pytest_itemcollected(item: pytest.Item) -> None:
    """CrewAI reads deprecated fields of its own whenever an agent is made."""
    item.add_marker(pytest.mark.filterwarnings(r"ignore::DeprecationWarning:crewai\."))


@pytest.fixture(autouse=True)
def _nothing_but_the_test_server(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_API_BASE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def gateway() -> Iterator[GatewayDouble]:
    """Where the calls of trained agents arrive, with the installed plugin saying who calls."""
    plugins = load_plugins(["crewai"])
    assert plugins.broken == {}
    with serving() as server, instrument(plugins.who):
        yield server
    detach()
