from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from langchain_openai import ChatOpenAI
from openai import DefaultAsyncHttpxClient, DefaultHttpxClient
from pydantic import SecretStr

from lightning_core.plugins import load_plugins
from lightning_core.testing.server import GatewayDouble, serving
from lightning_core.tracing.openai_sdk import instrument


@pytest.fixture
def gateway() -> Iterator[GatewayDouble]:
    """Where the calls of trained agents arrive, with the installed plugin saying who calls."""
    plugins = load_plugins(["langgraph"])
    assert plugins.broken == {}
    with serving() as server, instrument(plugins.who):
        yield server


@pytest.fixture
async def llm() -> AsyncIterator[ChatOpenAI]:
    """A chat model that names no endpoint."""
    with DefaultHttpxClient(verify=False) as http:
        async with DefaultAsyncHttpxClient(verify=False) as ahttp:
            yield ChatOpenAI(
                model="any", api_key=SecretStr("none"), http_client=http, http_async_client=ahttp
            )
