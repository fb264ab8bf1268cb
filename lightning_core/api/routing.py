"""How a request is read, answered and refused: who sends it, its JSON, pages of long lists, and waits.

Numbers that JSON has no word for (a metric or a log-probability may be one) are the strings "NaN", "Infinity"
and "-Infinity", except in EXACT_JSON, which the store over HTTP speaks.

An error's answer is `{"error": {"code", "message", "field"}}`, with a status that says who must act. 4xx:
the caller sends something else. 5xx: the caller sends the same again later. A refused request has stored
nothing.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any, Final, TypeVar

from fastapi import Query, Request
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field
from pydantic_core import PydanticSerializationError
from pydantic_core import to_json as dump
from starlette.responses import Response
from starlette.types import Scope

from lightning_core.api.access import admit
from lightning_core.errors import (
    AccessError,
    ApiError,
    ConfigError,
    DataError,
    LeaseLostError,
    LightningError,
    NotFoundError,
    ScopeError,
    StoreError,
)
from lightning_core.gateway.wire import read_body, read_content, wait_disconnect
from lightning_core.stores.packing import as_plain, dump_json
from lightning_core.texts.json_text import EXACT_JSON, JsonError, read_json

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
    """A handler's answer; its route writes it in the form that the client reads."""

    def __init__(self, content: Any) -> None:
        super().__init__()
        self.content = content

    def written(self, *, exact: bool) -> Response:
        if exact:
            return Response(dump_json(as_plain(self.content)), media_type=EXACT_JSON)
        return Response(to_json(self.content), media_type="application/json")


def reply(content: Any) -> Response:
    """An answer of models, lists and dicts of them."""
    return _Reply(content)


def to_json(content: Any) -> bytes:
    """JSON of models, lists and dicts of them."""
    plain = as_plain(content)
    try:
        return dump(plain, inf_nan_mode="strings")
    except PydanticSerializationError:  # half a surrogate pair, which a model may well write
        return json.dumps(_finite(plain)).encode()


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
class ListPage:
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


# errors as answers ----------------------------------------------------------------------------------
log = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 1
_KINDS_OF_KEY: Final = ("constrained-str", "Held")
"""As pydantic names the two in the place of an error."""
_ANSWERS: Final[tuple[tuple[type[LightningError], int, str], ...]] = (
    (ScopeError, 403, "forbidden"),
    (AccessError, 401, "invalid_token"),
    (NotFoundError, 404, "not_found"),
    (LeaseLostError, 409, "lease_lost"),
    (StoreError, 503, "store_away"),
    (DataError, 422, "invalid_value"),
    (ConfigError, 422, "invalid_value"),
)
"""The first that fits counts."""


class Problem(BaseModel):
    """The error of a request."""

    code: str = Field(examples=["not_found"])
    """For programs: one word for each kind of error."""
    message: str = Field(examples=["no rollout 'r9' in this store"])
    """For people: what happened, to what, and what to do."""
    field: str | None = Field(default=None, examples=["rollouts[0].step"])
    """The field of the request that can't be used, if it is one."""


class ErrorBody(BaseModel):
    """The answer to a request that was refused."""

    error: Problem


DOCUMENTED: Final[dict[int | str, dict[str, Any]]] = {
    401: {"model": ErrorBody, "description": "No token, a forged one, or one that has expired."},
    403: {"model": ErrorBody, "description": "A good token that does not open this."},
    404: {"model": ErrorBody, "description": "Something named is not in the store."},
    409: {"model": ErrorBody, "description": "The attempt is no longer yours: drop its result."},
    413: {"model": ErrorBody, "description": "The body is longer than the server takes."},
    422: {"model": ErrorBody, "description": "Something can't be used; `field` names it."},
    503: {"model": ErrorBody, "description": "The store is away; send the same after `Retry-After` seconds."},
}
"""The errors that any request may get, for the OpenAPI document."""


def refuse(error: Exception) -> Response:
    """The answer to an error of this package."""
    if isinstance(error, ApiError):  # of the server, about the body
        return refusal(error.status, error.code, str(error))
    status, code = next(
        ((status, code) for kind, status, code in _ANSWERS if isinstance(error, kind)), (500, "internal")
    )
    headers = {401: {"www-authenticate": "Bearer"}, 503: {"retry-after": str(_RETRY_SECONDS)}}
    return refusal(status, code, str(error), getattr(error, "field", None), headers.get(status))


def refusal(
    status: int, code: str, message: str, field: str | None = None, headers: dict[str, str] | None = None
) -> Response:
    """An error body with its status."""
    content = to_json(ErrorBody(error=Problem(code=code, message=message, field=field)))
    return Response(content, status_code=status, headers=headers, media_type="application/json")


async def refuse_lightning(request: Request, error: Any) -> Response:
    """An error of this package."""
    return refuse(error)


async def refuse_input(request: Request, error: Any) -> Response:
    """Names the first field that is not of the form in the OpenAPI document."""
    first = error.errors()[0]
    field = _field(first["loc"])
    if first["type"] == "json_invalid":
        return refusal(400, "invalid_json", f"the body can't be read as JSON: {first['ctx']['error']}")
    return refusal(422, "invalid_value", f"{field or 'the body'}: {first['msg']}", field or None)


async def refuse_http(request: Request, error: Any) -> Response:
    """Unknown addresses and methods."""
    asked = f"{request.method} {request.url.path}"
    if error.status_code == 405:
        return refusal(405, "method_not_allowed", f"{asked} is not served; /api/v1/openapi.json says what is")
    if error.status_code == 404:
        return refusal(404, "unknown_address", f"{asked} is not served; /api/v1/openapi.json says what is")
    return refusal(error.status_code, "refused", f"{asked}: {error.detail}")


async def refuse_bug(request: Request, error: Any) -> Response:
    """An unexpected error; the traceback is in the server's log."""
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return refusal(500, "internal", f"{type(error).__name__}: {error}; see the server's log")


def _field(place: Sequence[str | int]) -> str:
    """`rollouts[0].step` for ("body", "rollouts", 0, "step")."""
    inside = place[1:] if place and place[0] in ("body", "query", "path", "header") else place
    kinds = (depth for depth, part in enumerate(inside) if part in _KINDS_OF_KEY)
    inside = inside[: next(kinds, len(inside))]  # a key that is of neither kind is wrong as a whole
    return "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in inside).lstrip(".")
