"""How much a client may send before it is answered, and how fast: of the gateway, and of the REST API.

The head of a request is bounded in `protocol`, which parses it; the body here, between server and app. An app
reads a body only once it has admitted its sender: what a stranger sends is never kept.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lightning_core.errors import ApiError


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one request."""

    head_bytes: int = 64 * 2**10
    """Of the address and all headers."""
    head_seconds: float = 30.0
    """From the first byte of a request, or the opening of its connection, to the end of its headers."""
    body_bytes: int = 20 * 2**20
    """Of the body: more than the longest context of a model, and what OpenTelemetry's collector takes."""
    body_seconds: float = 60.0
    """From the first look at the body to its end."""


LIMITS: Final = Limits()


class Bounded:
    """An ASGI app whose requests have bodies within the limits: to read one that is too large, or comes too
    slowly, raises ApiError."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self._app = app
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        length = _length(scope)
        if length == 0:
            await self._app(scope, receive, send)
        else:
            body = _Body(receive, length, self._limits)
            await self._app(scope, body.receive, send)


class _Body:
    def __init__(self, receive: Receive, length: int | None, limits: Limits) -> None:
        self._receive = receive
        self._limits = limits
        self._size = 0
        self._announced = length or 0
        self._until: float | None = None
        self._complete = False

    async def receive(self) -> Message:
        if self._complete:
            return await self._receive()
        self._check(self._announced)
        if self._until is None:
            self._until = asyncio.get_running_loop().time() + self._limits.body_seconds
        try:
            async with asyncio.timeout_at(self._until):
                message = await self._receive()
        except TimeoutError:
            raise self._too_slow() from None
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

    def _too_slow(self) -> ApiError:
        return ApiError(
            f"the body was not complete after {self._limits.body_seconds:g} s; send it faster, or in parts",
            status=408,
            code="too_slow",
        )


def _length(scope: Scope) -> int | None:
    """The bytes of the body; None if only its end says how many."""
    for name, value in scope.get("headers", ()):
        if name == b"content-length":
            return int(value)
        if name == b"transfer-encoding":
            return None
    return 0
