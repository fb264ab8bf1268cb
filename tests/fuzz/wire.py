"""HTTP by hand: a client that sends what no library would, and leaves when no library would."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

from tests.fuzz.grammar import Manner

PATIENCE = 600.0
"""Seconds for one answer. A reply up to the end of the context takes a busy machine minutes."""
_STALL_SECONDS = 0.5
_PIECES = 5
_READ = ("whole", "slow", "half")


@dataclass(frozen=True, slots=True)
class Answer:
    """A server's answer. `status` 0: there was none."""

    status: int
    headers: dict[str, str]
    body: bytes
    whole: bool
    """Whether the body came to its end."""
    late: bool = False
    """Whether it did not come within `PATIENCE`."""


NOTHING = Answer(0, {}, b"", whole=False)


async def ask(
    url: str, method: str, path: str, headers: list[tuple[str, bytes]], body: bytes, manner: Manner = "whole"
) -> Answer:
    """Send one request over a connection of its own and read the answer, as far as the manner goes.

    Raises OSError if nothing listens.
    """
    where = urlsplit(url)
    assert where.hostname is not None
    reader, writer = await asyncio.open_connection(where.hostname, where.port, limit=1 << 22)
    # read from the beginning: who is refused early is answered, and cut off, while he still sends
    reading = asyncio.create_task(_read(reader, headless=method == "HEAD")) if manner in _READ else None
    try:
        async with asyncio.timeout(PATIENCE):
            await _send(writer, _head(where.netloc, method, path, headers, body) + b"\r\n", body, manner)
            match manner:
                case "cut":
                    return NOTHING
                case "stall":
                    await asyncio.sleep(_STALL_SECONDS)
                    return NOTHING
                case "leave":
                    await asyncio.sleep(len(body) % 7 / 20)
                    return NOTHING
                case "abort":
                    return await _abort(reader, writer, len(body) % 300)
            assert reading is not None
            return await reading
    except TimeoutError:
        return Answer(0, {}, b"", whole=False, late=True)
    except (ConnectionError, asyncio.IncompleteReadError):
        return NOTHING
    finally:
        if reading is not None:
            reading.cancel()
            await asyncio.wait({reading})
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


def _head(host: str, method: str, path: str, headers: list[tuple[str, bytes]], body: bytes) -> bytes:
    lines = [f"{method} {path} HTTP/1.1".encode(), b"host: " + host.encode(), b"connection: close"]
    lines += [name.encode() + b": " + value for name, value in headers]
    if body or method not in ("GET", "HEAD"):
        lines.append(b"content-length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n"


async def _send(writer: asyncio.StreamWriter, head: bytes, body: bytes, manner: Manner) -> None:
    if manner in ("cut", "stall"):
        body = body[: len(body) // 2]
    pieces = _PIECES if manner == "slow" else 1
    size = len(head + body) // pieces + 1
    with suppress(ConnectionError):  # an answer before the end of the body is one too
        for start in range(0, len(head + body), size):
            writer.write((head + body)[start : start + size])
            await writer.drain()
            await asyncio.sleep(0.03 if pieces > 1 else 0)
        if manner == "half":
            writer.write_eof()


async def _abort(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, after: int) -> Answer:
    """Leave in the middle of the answer, by a reset."""
    with suppress(asyncio.IncompleteReadError):
        await reader.readexactly(after)
    with suppress(OSError):  # it may be closed already
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
    return NOTHING


async def _read(reader: asyncio.StreamReader, *, headless: bool) -> Answer:
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {
        name.strip().lower(): value.strip()
        for name, _, value in (line.partition(":") for line in lines if line)
    }
    status = int(first.split()[1])
    if status == 100:
        return await _read(reader, headless=headless)
    body = bytearray()
    if headless:
        return Answer(status, headers, b"", whole=True)
    try:
        if "chunked" in headers.get("transfer-encoding", ""):
            while size := int(await reader.readuntil(b"\r\n"), 16):
                body += (await reader.readexactly(size + 2))[:-2]
            await reader.readuntil(b"\r\n")
        elif "content-length" in headers:
            body += await reader.readexactly(int(headers["content-length"]))
        else:
            body += await reader.read()
    except (asyncio.IncompleteReadError, ConnectionError):
        return Answer(status, headers, bytes(body), whole=False)
    return Answer(status, headers, bytes(body), whole=True)
