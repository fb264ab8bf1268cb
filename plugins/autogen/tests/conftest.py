from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from autogen_ext.models.openai import OpenAIChatCompletionClient
from lightning_autogen import detach

from lightning_core.plugins import load_plugins
from lightning_core.testing.server import GatewayDouble, serving
from lightning_core.tracing.openai_sdk import instrument
from plugins.autogen.tests.playing import open_client


@pytest.fixture
def gateway() -> Iterator[GatewayDouble]:
    """Where the calls of trained agents arrive, with the installed plugin saying who calls."""
    plugins = load_plugins(["autogen"])
    assert plugins.broken == {}
    with serving() as server, instrument(plugins.who):
        yield server
    detach()


@pytest.fixture
async def client() -> AsyncIterator[OpenAIChatCompletionClient]:
    """A model client that names no endpoint."""
    async with open_client() as opened:
        yield opened
