"""Two real servers of vLLM, started once for all tests here."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from lightning_core.backends.chat.folder import tiny_folder


@pytest.fixture(scope="session")
def engine() -> Iterator[object]:
    """Two servers of the shipped tiny model, float32. Tests may change the weights and kill servers."""
    pytest.importorskip("vllm")
    from lightning_core.backends.vllm import ServerOptions, VllmEngine

    options = ServerOptions(dtype="float32", max_num_seqs=64)
    made = VllmEngine(tiny_folder(), servers=2, options=options)
    asyncio.run(made.start())
    yield made
    asyncio.run(made.close())
