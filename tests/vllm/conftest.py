"""Two real servers of vLLM, started once for all tests here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from lightning_core.backends.chat.folder import tiny_folder
from tests.vllm.weights import rambling, until

LITTLE_MEMORY = ("--kv-cache-memory-bytes", str(256 << 20))
"""For keys and values; the tiny model has room for 100,000 tokens in it."""


@pytest.fixture(scope="session")
def engine() -> Iterator[object]:
    """Two servers of the shipped tiny model, float32. Tests may change the weights and kill servers."""
    pytest.importorskip("vllm")
    from lightning_core.backends.vllm.engine import VllmEngine
    from lightning_core.backends.vllm.server import ServerOptions

    options = ServerOptions(dtype="float32", max_num_seqs=64, extra=LITTLE_MEMORY)
    made = VllmEngine(tiny_folder(), servers=2, options=options)
    asyncio.run(made.start())
    yield made
    asyncio.run(made.close())


@pytest.fixture
async def rambler(engine: Any, tmp_path: Path) -> AsyncIterator[Any]:
    """The network by whose weights the servers answer in this test, at length."""
    await until(lambda: not engine.replicas.dead)  # a test before this one may have killed one
    network = rambling(tmp_path / "rambling")
    await engine.refresh(tmp_path / "rambling")
    yield network
    await engine.refresh(tiny_folder())
