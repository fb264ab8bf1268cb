"""JSON in and out, and how much of it, how fast.

Bodies are read whole before anything else happens, so that a client that is slow, or sends too much, has
touched nothing when it is refused. Numbers that JSON has no word for (a metric or a log-probability may be
one) are the strings "NaN", "Infinity" and "-Infinity".
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Coroutine
from types import MappingProxyType
from typing import Any, Final

import orjson
from fastapi import Request
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic_core import PydanticSerializationError
from pydantic_core import to_json as dump
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_SPELT: Final = MappingProxyType({math.inf: "Infinity", -math.inf: "-Infinity"})
BODY_BYTES: Final = 64 * 2**20
"""The longest body: a bulk of calls with long prompts. Longer ones are better sent in parts."""
BODY_SECONDS: Final = 60.0
"""How long a client may take to send it."""

Refuse = Callable[[int, str, str], Response]
"""Makes an answer of (status, code, message)."""


def to_json(content: Any) -> bytes:
    """JSON of models, lists and dicts of them."""
    plain = _plain(content)
    try:
        return dump(plain, inf_nan_mode="strings")
    except PydanticSerializationError:  # half a surrogate pair, which a model may well write
        return json.dumps(_spelt(plain)).encode()


def reply(content: Any) -> Response:
    """An answer."""
    return Response(to_json(content), media_type="application/json")


class JsonRoute(APIRoute):
    """Reads bodies by orjson, which refuses NaN and broken Unicode, and nesting without end."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def read(request: Request) -> Response:
            return await handle(_JsonRequest(request.scope, request.receive))

        return read


class _JsonRequest(Request):
    async def json(self) -> Any:
        return orjson.loads(await self.body())


class WholeBodies:
    """Hands requests on once their body is there; refuses those that are too long or too slow."""

    def __init__(self, app: ASGIApp, refuse: Refuse, most: int, seconds: float) -> None:
        self._app = app
        self._refuse = refuse
        self._most = most
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            async with asyncio.timeout(self._seconds):
                body = await self._read(receive)
        except TimeoutError:
            words = f"the body was not there after {self._seconds:g} s; send it faster, or in parts"
            await self._refuse(408, "too_slow", words)(scope, receive, send)
            return
        if body is None:  # the client has left
            return
        if len(body) > self._most:
            words = f"the body is longer than {self._most} bytes; send fewer records at once"
            await self._refuse(413, "too_large", words)(scope, receive, send)
            return
        await self._app(_as_json(scope), _again(body, receive), send)

    async def _read(self, receive: Receive) -> bytes | None:
        """The body, or a little more than the most of it; None if the client left."""
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return None
            body += message.get("body", b"")
            if not message.get("more_body") or len(body) > self._most:
                return bytes(body)


def _as_json(scope: Scope) -> Scope:
    """The request with a body of JSON, whatever the client calls it: `curl -d` calls it a form."""
    headers = [header for header in scope["headers"] if header[0] != b"content-type"]
    return {**scope, "headers": [*headers, (b"content-type", b"application/json")]}


def _again(body: bytes, receive: Receive) -> Receive:
    """A channel that gives the body once, and then what else comes."""
    left: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def read() -> Message:
        return left.pop() if left else await receive()

    return read


def _plain(content: Any) -> Any:
    if isinstance(content, BaseModel):
        return content.model_dump()
    if isinstance(content, list | tuple):
        return [_plain(one) for one in content]
    if isinstance(content, dict):
        return {key: _plain(value) for key, value in content.items()}
    return content


def _spelt(content: Any) -> Any:
    """Plain content with those numbers as strings that JSON has no word for."""
    if isinstance(content, list):
        return [_spelt(one) for one in content]
    if isinstance(content, dict):
        return {key: _spelt(value) for key, value in content.items()}
    if isinstance(content, float) and not math.isfinite(content):
        return _SPELT.get(content, "NaN")
    return content
