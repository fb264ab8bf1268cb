"""A real server in a process of its own, which the tests of this folder share."""

from __future__ import annotations

import gc
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from research.tinker.server import Server, free_port


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of the tiny model."""
    made = Server(tmp_path_factory.mktemp("server"), free_port())
    try:
        made.start()
        yield made
    finally:
        made.kill()


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Collects the connections that the client leaves open, before they are found where they are an error."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@asynccontextmanager
async def serving_by(server: Server, **options: Any) -> AsyncIterator[Any]:
    """A started backend; closed at the end."""
    from lightning_core.backends.tinker.backend import TinkerBackend

    backend = TinkerBackend(**{"model": "tiny", "url": server.url, "rank": 8, "reduction": "mean", **options})
    await backend.start()
    try:
        yield backend
    finally:
        await backend.close()
