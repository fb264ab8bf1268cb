"""A network in front of a server that can be cut and mended."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from urllib.parse import urlsplit

from lightning_core.backends.vllm.client import SOCKET


class Network:
    """`async with Network(server.url) as network`: `network.url` leads to the server while `up`."""

    def __init__(self, url: str) -> None:
        self._beyond = url
        self._open: set[asyncio.StreamWriter] = set()
        self.up = True

    async def __aenter__(self) -> Network:
        self._server = await asyncio.start_server(self._connect, "127.0.0.1")
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.cut()
        self._server.close()

    def cut(self) -> None:
        """Break all connections off, and every new one."""
        self.up = False
        for writer in self._open:
            writer.transport.abort()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.up:
            writer.transport.abort()
            return
        if self._beyond.startswith(SOCKET):
            there, back = await asyncio.open_unix_connection(self._beyond.removeprefix(SOCKET))
        else:
            beyond = urlsplit(self._beyond)
            there, back = await asyncio.open_connection(beyond.hostname, beyond.port)
        self._open |= {writer, back}
        await asyncio.gather(_pass(reader, back), _pass(there, writer))
        self._open -= {writer, back}


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()
