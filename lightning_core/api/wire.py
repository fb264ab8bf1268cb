"""JSON in and out.

Numbers that JSON has no word for (a metric or a log-probability may be one) are the strings "NaN", "Infinity"
and "-Infinity".
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Coroutine
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from fastapi import Request
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic_core import PydanticSerializationError
from pydantic_core import to_json as dump
from starlette.responses import Response
from starlette.types import Scope

from lightning_core.api.access import admit
from lightning_core.gateway.wire import read_body, read_content
from lightning_core.json_text import EXACT_JSON, JsonError, read_json
from lightning_core.stores.packing import dump_json

_SPELT: Final = MappingProxyType({math.inf: "Infinity", -math.inf: "-Infinity"})
_PARTS: Final = 4_000_000
"""Lists, objects and fields of one body, and brackets and colons in its texts: it may be a bulk of calls."""


def to_json(content: Any) -> bytes:
    """JSON of models, lists and dicts of them."""
    plain = _plain(content)
    try:
        return dump(plain, inf_nan_mode="strings")
    except PydanticSerializationError:  # half a surrogate pair, which a model may well write
        return json.dumps(_spelt(plain)).encode()


class _Unwritten(Response):
    """What a handler answers, which its route writes as the client reads it."""

    def __init__(self, content: Any) -> None:
        super().__init__()
        self.content = content

    def written(self, *, exact: bool) -> Response:
        if exact:
            return Response(dump_json(_plain(self.content)), media_type=EXACT_JSON)
        return Response(to_json(self.content), media_type="application/json")


def reply(content: Any) -> Response:
    """An answer."""
    return _Unwritten(content)


class JsonRoute(APIRoute):
    """Admits the caller, and only then reads the body, whole: a client that is slow, or sends too much, has
    touched nothing when it is refused.

    A body is JSON whatever the client calls it: `curl -d` calls it a form.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def read(request: Request) -> Response:
            request.state.caller = await admit(request)
            request.state.body = await read_body(request.receive)
            if request.state.body is None:  # the client has left
                return Response(status_code=400)
            request.state.exact = request.headers.get("content-type") == EXACT_JSON
            answer = await handle(_JsonRequest(_as_json(request.scope), request.receive))
            exact = request.headers.get("accept") == EXACT_JSON
            return answer.written(exact=exact) if isinstance(answer, _Unwritten) else answer

        return read


class _JsonRequest(Request):
    async def body(self) -> bytes:
        body: bytes = self.state.body
        return body

    async def json(self) -> Any:
        return await read_content(self.state.body, partial(_read, exact=self.state.exact))


def _read(body: bytes, *, exact: bool) -> Any:
    try:
        return read_json(body, parts=_PARTS, exact=exact)
    except JsonError as error:
        raise json.JSONDecodeError(str(error), "", 0) from error


def _as_json(scope: Scope) -> Scope:
    headers = [header for header in scope["headers"] if header[0] != b"content-type"]
    return {**scope, "headers": [*headers, (b"content-type", b"application/json")]}


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
