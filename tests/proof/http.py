"""HTTP clients for hundreds of rollouts at once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from openai import DefaultAsyncHttpxClient, DefaultHttpxClient


@asynccontextmanager
async def open_http() -> AsyncIterator[tuple[Any, Any]]:
    """A sync and an async client, of the library that this openai is built on and without limits."""
    library = __import__(DefaultHttpxClient.__mro__[1].__module__.partition(".")[0])
    limits = library.Limits(max_connections=None, max_keepalive_connections=None)
    with DefaultHttpxClient(limits=limits, verify=False) as http:
        async with DefaultAsyncHttpxClient(limits=limits, verify=False) as ahttp:
            yield http, ahttp
