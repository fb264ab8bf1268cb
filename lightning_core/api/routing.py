"""How a request is read and answered: who sends it, its JSON, pages of long lists, and waits.

Numbers that JSON has no word for (a metric or a log-probability may be one) are the strings "NaN", "Infinity"
and "-Infinity", except in EXACT_JSON, which the store over HTTP speaks.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any, Final, TypeVar

from fastapi import Query, Request
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic_core import PydanticSerializationError
from pydantic_core import to_json as dump
from starlette.responses import Response
from starlette.types import Scope

from lightning_core.api.access import admit
from lightning_core.errors import NotFoundError
from lightning_core.gateway.wire import read_body, read_content, wait_disconnect
from lightning_core.json_text import EXACT_JSON, JsonError, read_json
from lightning_core.stores.packing import dump_json

T = TypeVar("T")
_NO_JSON: Final = MappingProxyType({math.inf: "Infinity", -math.inf: "-Infinity"})
_PARTS: Final = 4_000_000
"""Lists, objects and fields of one body, and brackets and colons in its texts: it may be a bulk of calls."""
_MOST: Final = 10_000
"""Entries of one page."""


# requests -----------------------------------------------------------------------------------------
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
            return answer.written(exact=exact) if isinstance(answer, _Reply) else answer

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


# answers ------------------------------------------------------------------------------------------
class _Reply(Response):
    """What a handler answers; its route writes it in the form that the client reads."""

    def __init__(self, content: Any) -> None:
        super().__init__()
        self.content = content

    def written(self, *, exact: bool) -> Response:
        if exact:
            return Response(dump_json(_plain(self.content)), media_type=EXACT_JSON)
        return Response(to_json(self.content), media_type="application/json")


def reply(content: Any) -> Response:
    """An answer of models, lists and dicts of them."""
    return _Reply(content)


def to_json(content: Any) -> bytes:
    """JSON of models, lists and dicts of them."""
    plain = _plain(content)
    try:
        return dump(plain, inf_nan_mode="strings")
    except PydanticSerializationError:  # half a surrogate pair, which a model may well write
        return json.dumps(_finite(plain)).encode()


def _plain(content: Any) -> Any:
    if isinstance(content, BaseModel):
        return content.model_dump()
    if isinstance(content, list | tuple):
        return [_plain(one) for one in content]
    if isinstance(content, dict):
        return {key: _plain(value) for key, value in content.items()}
    return content


def _finite(content: Any) -> Any:
    """Plain content with those numbers as strings that JSON has no word for."""
    if isinstance(content, list):
        return [_finite(one) for one in content]
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, float) and not math.isfinite(content):
        return _NO_JSON.get(content, "NaN")
    return content


# pages and waits ----------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Page:
    """Which part of a list is wanted: `after` is what the page before gave as `next`."""

    after: Annotated[str | None, Query(description="`next` of the page before; none for the first.")] = None
    limit: Annotated[int, Query(ge=1, le=_MOST, description="The most entries of a page.")] = 1_000

    def of(self, entries: Sequence[T], name: Callable[[T], str]) -> tuple[list[T], str | None]:
        """The page, and the name of its last entry if more follow. NotFoundError for an unknown `after`."""
        first = 0 if self.after is None else self._position(entries, name) + 1
        page = list(entries[first : first + self.limit])
        return page, name(page[-1]) if first + self.limit < len(entries) else None

    def _position(self, entries: Sequence[T], name: Callable[[T], str]) -> int:
        for position, entry in enumerate(entries):
            if name(entry) == self.after:
                return position
        raise NotFoundError(
            f"after={self.after!r} is not in the list; give what the page before had as `next`"
        )


async def wait_with(request: Request, news: Coroutine[Any, Any, T]) -> T | None:
    """The news, once they come; None if meanwhile the client left, or the server is to stop."""
    stopping: asyncio.Event = request.app.state.stopping
    hoped = asyncio.ensure_future(news)
    ends = asyncio.ensure_future(wait_disconnect(request.receive)), asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait({hoped, *ends}, return_when=asyncio.FIRST_COMPLETED)
        said = hoped.result() if hoped.done() else None
        return None if any(end.done() for end in ends) else said
    finally:
        for task in (hoped, *ends):
            task.cancel()
        await asyncio.gather(hoped, *ends, return_exceptions=True)
