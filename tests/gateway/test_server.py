"""A gateway that listens, and one whose start is cut off."""

from __future__ import annotations

import asyncio
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from lightning_core.errors import GatewayError
from lightning_core.gateway.app import Gateway
from lightning_core.gateway.server import GatewayServer
from lightning_core.gateway.tokens import Tokens
from lightning_core.stores.sqlite import MemoryStore
from tests.gateway.scripted import ScriptedEngine


async def serve(port: int = 0, ready: asyncio.Event | None = None) -> None:
    async with MemoryStore() as store:
        gateway = Gateway(ScriptedEngine(), store, Tokens(b"0123456789abcdef"), agents=None)
        async with GatewayServer(gateway, port=port):
            if ready is not None:
                ready.set()
            await asyncio.sleep(60)


async def threads_left() -> list[str]:
    """The servers that still listen when every start and stop under way is over."""
    await asyncio.get_running_loop().shutdown_default_executor()
    return [thread.name for thread in threading.enumerate() if thread.name == "lightning-gateway"]


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("turns", range(8))
async def test_a_start_that_is_cancelled_leaves_no_server(turns: int, times: int) -> None:
    starting = asyncio.create_task(serve())
    for _ in range(turns):
        await asyncio.sleep(0)
    for _ in range(times):
        starting.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert await threads_left() == []


async def test_an_end_that_is_cancelled_before_it_has_begun_comes_all_the_same() -> None:
    ready, busy = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    serving = asyncio.create_task(serve(ready=ready))
    await ready.wait()
    blocked = loop.run_in_executor(None, busy.wait)
    for _ in range(2):
        serving.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await serving
    busy.set()
    await blocked
    assert await threads_left() == []


async def test_a_port_in_use_is_named_and_leaves_no_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(GatewayError, match=str(port)):
            await serve(port)
    assert await threads_left() == []
