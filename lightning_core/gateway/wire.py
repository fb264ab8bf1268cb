"""Reading a request's body and sending JSON back, straight on ASGI.

Starlette's Request and Response cost about as much as the rest of a call together, and its streaming
response watches for disconnects with a task group of its own; here the gateway does that itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, TypeVar

from starlette.types import Receive, Send

from lightning_core.dialects.writing import to_json

Headers = list[tuple[bytes, bytes]]
Read = TypeVar("Read")
_LONG: Final = 2**20
"""From so many bytes on, to read a body may take some ten milliseconds."""


async def read_body(receive: Receive) -> bytes | None:
    """The whole request body; None if the client left before it was complete."""
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body"):
        return bytes(message.get("body", b""))
    parts = []
    while message["type"] == "http.request":
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)
        message = await receive()
    return None


async def read_content(content: bytes, read: Callable[[bytes], Read]) -> Read:
    """`read(content)`; of a long body off the event loop, so that others are answered meanwhile."""
    return read(content) if len(content) < _LONG else await asyncio.to_thread(read, content)


async def wait_disconnect(receive: Receive) -> None:
    """Return when the client has left; call it once the body was read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def send_json(send: Send, content: Any, *, status: int = 200, headers: Headers | None = None) -> None:
    """A complete JSON reply."""
    body = to_json(content)
    head: Headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        *(headers or ()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})


async def start_events(send: Send, headers: Headers) -> None:
    """The head of a server-sent-events reply."""
    head: Headers = [
        (b"content-type", b"text/event-stream; charset=utf-8"),
        (b"cache-control", b"no-cache"),
        *headers,
    ]
    await send({"type": "http.response.start", "status": 200, "headers": head})


async def send_events(send: Send, body: bytes, *, more: bool) -> None:
    """A piece of a server-sent-events reply."""
    await send({"type": "http.response.body", "body": body, "more_body": more})
