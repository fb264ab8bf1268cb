"""A client that speaks to a server byte by byte, as no library would."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import orjson


@dataclass(frozen=True, slots=True)
class Answer:
    """All that the server sent before it closed the connection."""

    content: bytes
    sent: int
    """Bytes that the server, and the network's buffers, took."""

    @property
    def status(self) -> int:
        """Status of the last answer; 0 if there is none."""
        return int(self.content.rpartition(b"HTTP/1.1 ")[2][:3] or 0)

    @property
    def json(self) -> dict[str, Any]:
        """The body of the last answer, which is not chunked."""
        body: dict[str, Any] = orjson.loads(self.content.rpartition(b"\r\n\r\n")[2])
        return body

    @property
    def code(self) -> str:
        code: str = self.json["error"]["code"]
        return code


def head(path: str, *headers: str, method: str = "POST") -> bytes:
    """A request without its body."""
    return "\r\n".join((f"{method} {path} HTTP/1.1", "host: localhost", *headers, "", "")).encode()


async def exchange(
    url: str, parts: Iterable[bytes], *, pause: float = 0.0, shut: bool = False, seconds: float = 30.0
) -> Answer:
    """Send these parts, as far as the server takes them; what it says until it closes the connection.

    With `shut` our side is closed after the last part. Raises TimeoutError if the server does not close.
    """
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    sent = 0
    said = bytearray()
    reading = asyncio.create_task(_listen(reader, said))
    try:
        async with asyncio.timeout(seconds):
            with suppress(ConnectionError):
                for part in parts:
                    if reading.done():
                        break
                    writer.write(part)
                    await writer.drain()
                    sent += len(part)
                    await asyncio.sleep(pause)
                if shut:
                    writer.write_eof()
            await reading
        return Answer(bytes(said), sent)
    finally:
        reading.cancel()
        writer.transport.abort()


async def _listen(reader: asyncio.StreamReader, said: bytearray) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(2**16):
            said += data
