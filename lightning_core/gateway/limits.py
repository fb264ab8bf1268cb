"""How much a client may send before it is answered, and how fast: of the gateway, and of the REST API.

The head of a request is bounded by `HttpProtocol`, which parses it; the body by `Bounded`, between server and
app. An app reads a body only once it has admitted its sender: what a stranger sends is never kept.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from lightning_core.dialects.writing import to_json
from lightning_core.errors import ApiError
from lightning_core.gateway.errors import refusal_of
from lightning_core.gateway.unpacking import encoding_of, unpack
from lightning_core.gateway.wire import send_json

_INTERIM: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_LOOKS: Final = (0.01, 0.1, 0.5, 2.0)
"""Seconds from one look for a reset to the next: a network's way there and back, four times longer each."""
_REST_BYTES: Final = 32 * 2**20
_REST_SECONDS: Final = 2.0
"""How much, and for how long, is dropped of what comes after an answer."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one request."""

    head_bytes: int = 64 * 2**10
    """Bytes of the address and all headers."""
    head_seconds: float = 30.0
    """From the first byte of a request, or the opening of its connection, to the end of its headers."""
    body_bytes: int = 20 * 2**20
    """Bytes of the body: more than the longest context of a model, and what OpenTelemetry's collector
    takes."""
    body_seconds: float = 60.0
    """From the first look at the body to its end."""


LIMITS: Final = Limits()


class Bounded:
    """An ASGI app whose requests have bodies within the limits: to read one that is too large, packed or
    unpacked, or comes too slowly, raises ApiError. Compressed bodies are unpacked on the way."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self._app = app
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        length = _length(scope)
        if length == 0:
            await self._app(scope, receive, send)
        else:
            encoding = encoding_of(scope["headers"])
            if encoding != "identity":  # what the app reads is not compressed
                plain = [each for each in scope["headers"] if each[0] != b"content-encoding"]
                scope = {**scope, "headers": plain}
            body = _Body(receive, length, self._limits, encoding)
            await self._app(scope, body.receive, send)


class _Body:
    def __init__(self, receive: Receive, length: int | None, limits: Limits, encoding: str) -> None:
        self._receive = receive
        self._encoding = encoding
        self._limits = limits
        self._size = 0
        self._announced = length or 0
        self._until: float | None = None
        self._complete = False

    async def receive(self) -> Message:
        if self._complete:
            return await self._receive()
        return await (self._piece() if self._encoding == "identity" else self._unpacked())

    async def _unpacked(self) -> Message:
        """The whole body without its compression, within the same limit."""
        parts = []
        while not self._complete:
            message = await self._piece()
            if message["type"] != "http.request":
                return message
            parts.append(message.get("body", b""))
        packed, most = b"".join(parts), self._limits.body_bytes
        body = await asyncio.to_thread(unpack, packed, self._encoding, most)
        return {"type": "http.request", "body": body, "more_body": False}

    async def _piece(self) -> Message:
        self._check(self._announced)
        if self._until is None:
            self._until = asyncio.get_running_loop().time() + self._limits.body_seconds
        try:
            async with asyncio.timeout_at(self._until):
                message = await self._receive()
        except TimeoutError:
            raise ApiError(
                f"the body was not complete after {self._limits.body_seconds:g} s; send it "
                "faster, or in parts",
                status=408,
                code="too_slow",
            ) from None
        if message["type"] == "http.request":
            self._size += len(message.get("body", b""))
            self._check(self._size)
            self._complete = not message.get("more_body", False)
        return message

    def _check(self, size: int) -> None:
        if size > self._limits.body_bytes:
            raise ApiError(
                f"the body is longer than {self._limits.body_bytes} bytes; send less in one request",
                status=413,
                code="too_large",
            )


def _length(scope: Scope) -> int | None:
    """The bytes of the body; None if only its end says how many."""
    for name, value in scope.get("headers", ()):
        if name == b"content-length":
            return int(value)
        if name == b"transfer-encoding":
            return None
    return 0


# the head --------------------------------------------------------------------------------
class HttpProtocol(HttpToolsProtocol):
    """HTTP on one connection, as uvicorn speaks it, with bounds on what comes before a request's body.

    A request may be answered before it has come whole. The rest is then dropped for a moment: a connection
    that is closed at once is reset by what still comes, and many clients lose an answer so.

    A client may also close its side once it has sent a request (as `nc -N` does), and still gets its answer.
    To the server that looks as if the client had left, until it writes: an interim `100 Continue`, which HTTP
    lets any client overlook, is acknowledged by a client that listens and reset by one that has left.
    """

    def __init__(self, limits: Limits, **given: Any) -> None:
        super().__init__(**given)
        self._limits = limits
        self._loose = 0
        """Bytes since a request last began or its body went on: those of a head, most of all."""
        self._begun = False
        """Whether a head has begun and not ended."""
        self._whole = True
        """Whether the last request has come to its end."""
        self._parting = False
        """Whether the last answer was given, and all that still comes is dropped."""
        self._timer: asyncio.TimerHandle | None = None
        """Until when a head, or the rest of a request that was answered, must have ended."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect(self._limits.head_seconds, self._late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_no_more()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._loose += len(data)
        if not self._parting:
            super().data_received(data)  # may take back what was counted
        rest = self._parting or (self._idle and not self._whole)
        if rest and self._loose > _REST_BYTES:
            self.transport.abort()
        elif not rest and self._loose > self._limits.head_bytes:
            self._refuse(self._too_large())
        elif self._idle and self.timeout_keep_alive_task is None and self._timer is None:
            self._expect(self._limits.head_seconds, self._late)  # an empty line ended the wait for a request

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._loose, self._begun = 0, True
        if self._timer is None:
            self._expect(self._limits.head_seconds, self._late)

    def on_headers_complete(self) -> None:
        self._expect_no_more()
        self._begun, self._whole = False, False
        app = self.app
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self._limits.head_bytes:
            self.app = _refusing(self._too_large())
        if self.parser.get_http_version() == "1.0":
            self.app = self._until_closed(self.app)
        super().on_headers_complete()
        self.app = app

    def _until_closed(self, app: ASGIApp) -> ASGIApp:
        """The app for a client of HTTP 1.0, which knows no chunks: a reply of unknown length ends with the
        connection, which has no other request."""

        async def served(scope: Scope, receive: Receive, send: Send) -> None:
            cycle, sized = self.cycle, False

            async def plain(message: Message) -> None:
                nonlocal sized
                if message["type"] == "http.response.start":
                    sized = any(name == b"content-length" for name, _ in message["headers"])
                    cycle.chunked_encoding = None if sized else False
                elif not sized:
                    cycle.expected_content_length = len(message["body"])
                await send(message)

            await app(scope, receive, plain)

        return served

    def on_body(self, body: bytes) -> None:
        if not self._idle:
            self._loose = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._whole = True
        if self._idle:
            self._expect_no_more()
            self._loose = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._idle and not self._whole and not self.transport.is_closing():
            self._loose = 0
            self._expect(_REST_SECONDS, self._part)

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """Whether the connection stays open: for the answer to a request that has come whole. Once the answer
        has begun there is no way to ask, so who closes then has left; so has a client of HTTP 1.0."""
        cycle = self.cycle
        if self._idle or not self._whole or self.pipeline or self.scope["http_version"] != "1.1":
            return None
        if cycle.response_started:
            return None
        cycle.keep_alive = False
        self.transport.write(_INTERIM)
        self._look(0)
        return True

    @property
    def _idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def _look(self, times: int) -> None:
        """Drop the connection if the client has reset it; look again later."""
        if self.transport.is_closing():
            return
        if times and self.transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.transport.abort()
        elif times < len(_LOOKS):
            self.loop.call_later(_LOOKS[times], self._look, times + 1)

    def _expect(self, seconds: float, otherwise: Callable[[], None]) -> None:
        self._expect_no_more()
        self._timer = self.loop.call_later(seconds, otherwise)

    def _expect_no_more(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        if self._begun:
            words = f"the headers were not complete after {self._limits.head_seconds:g} s; send them faster"
            self._refuse(ApiError(words, status=408, code="too_slow"))
        else:
            self.transport.close()

    def _too_large(self) -> ApiError:
        return ApiError(
            f"the address and the headers are longer than {self._limits.head_bytes} bytes; send less",
            status=431,
            code="too_large",
        )

    def _refuse(self, refusal: ApiError) -> None:
        """End the connection, with an answer unless one to an earlier request is under way."""
        if self.transport.is_closing():
            return
        if not self._idle:
            self.transport.abort()
            return
        content = to_json(refusal.body())
        head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
        self.transport.write(STATUS_LINE[refusal.status] + head % len(content) + content)
        self._loose = 0
        self._part()

    def _part(self) -> None:
        """Say no more, and close the connection soon."""
        if not self.transport.is_closing():
            self._parting = True
            self.transport.write_eof()
            self._expect(_REST_SECONDS, self.transport.close)


def _refusing(refusal: ApiError) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send_json(send, refusal_of(scope["path"], refusal), status=refusal.status)

    return app
