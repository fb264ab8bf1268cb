"""Real servers of vLLM, started once for all tests here."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightning_core.backends.weights.sources import tiny_folder
from tests.vllm.weights import Servers, rambling

LITTLE_MEMORY = ("--kv-cache-memory-bytes", str(256 << 20))
"""For keys and values; the tiny model has room for 100,000 tokens in it."""


@pytest.fixture(scope="session")
def engine() -> Iterator[object]:
    """The shipped tiny model, float32."""
    pytest.importorskip("vllm")
    from lightning_core.backends.vllm.server import ServerOptions, VllmEngine

    options = ServerOptions(dtype="float32", max_num_seqs=64, extra=LITTLE_MEMORY)
    made = VllmEngine(tiny_folder(), options=options)
    asyncio.run(made.start())
    yield made
    asyncio.run(made.close())


@pytest.fixture(scope="session")
def rambler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Two servers of a network that talks at length. Tests may kill them: they are started again."""
    pytest.importorskip("vllm")
    from lightning_core.backends.vllm.server import ServerOptions, VllmServer
    from lightning_core.backends.vllm.upstream import Replicas, VllmUpstream

    folder: Path = tmp_path_factory.mktemp("weights") / "rambling"
    network = rambling(folder)
    options = ServerOptions(dtype="float32", max_num_seqs=64, extra=LITTLE_MEMORY)
    servers = [VllmServer(folder, name="tiny", options=options) for _ in range(2)]

    async def start() -> None:
        async with asyncio.TaskGroup() as starting:
            for server in servers:
                starting.create_task(server.start())
        await upstream.check()

    async def revive() -> None:
        for server in servers:
            if not server.running:
                await server.start()

    async def close() -> None:
        await replicas.close()
        await asyncio.gather(*(server.close() for server in servers))

    replicas = Replicas(
        [server.url for server in servers], "tiny", server_timeout=600, max_running=128, revive=revive
    )
    upstream = VllmUpstream(folder, replicas, name="tiny")
    asyncio.run(start())
    yield Servers(servers, network, replicas, upstream)
    asyncio.run(close())
