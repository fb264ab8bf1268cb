"""Errors as answers: `{"error": {"code", "message", "field"}}`, with a status that says who must act.

4xx: the caller sends something else. 5xx: the caller sends the same again later. A refused request has stored
nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

from fastapi import Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from lightning_core.api.routing import to_json
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
    """What went wrong."""

    code: str = Field(examples=["not_found"])
    """For programs: one word for each kind of error."""
    message: str = Field(examples=["no rollout 'r9' in this store: it was never enqueued"])
    """For people: what happened, to what, and what to do."""
    field: str | None = Field(default=None, examples=["rollouts[0].step"])
    """What in the request can't be used, if it is one thing."""


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
        return answer(error.status, error.code, str(error))
    status, code = next(
        ((status, code) for kind, status, code in _ANSWERS if isinstance(error, kind)), (500, "internal")
    )
    headers = {401: {"www-authenticate": "Bearer"}, 503: {"retry-after": str(_RETRY_SECONDS)}}
    return answer(status, code, str(error), getattr(error, "field", None), headers.get(status))


def answer(
    status: int, code: str, message: str, field: str | None = None, headers: dict[str, str] | None = None
) -> Response:
    """An error body with its status."""
    content = to_json(ErrorBody(error=Problem(code=code, message=message, field=field)))
    return Response(content, status_code=status, headers=headers, media_type="application/json")


async def refuse_lightning(request: Request, error: Any) -> Response:
    """An error of this package."""
    return refuse(error)


async def refuse_input(request: Request, error: Any) -> Response:
    """What is not of the form that the OpenAPI document gives: the first field that is not."""
    first = error.errors()[0]
    field = _field(first["loc"])
    if first["type"] == "json_invalid":
        return answer(400, "invalid_json", f"the body can't be read as JSON: {first['ctx']['error']}")
    return answer(422, "invalid_value", f"{field or 'the body'}: {first['msg']}", field or None)


async def refuse_http(request: Request, error: Any) -> Response:
    """Unknown addresses and methods."""
    asked = f"{request.method} {request.url.path}"
    if error.status_code == 405:
        return answer(405, "method_not_allowed", f"{asked} is not served; /api/v1/openapi.json says what is")
    if error.status_code == 404:
        return answer(404, "unknown_address", f"{asked} is not served; /api/v1/openapi.json says what is")
    return answer(error.status_code, "refused", f"{asked}: {error.detail}")


async def refuse_bug(request: Request, error: Any) -> Response:
    """An unexpected error; the traceback is in the server's log."""
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return answer(500, "internal", f"{type(error).__name__}: {error}; see the server's log")


def _field(place: Sequence[str | int]) -> str:
    """`rollouts[0].step` for ("body", "rollouts", 0, "step")."""
    inside = place[1:] if place and place[0] in ("body", "query", "path", "header") else place
    kinds = (depth for depth, part in enumerate(inside) if part in _KINDS_OF_KEY)
    inside = inside[: next(kinds, len(inside))]  # a key that is of neither kind is wrong as a whole
    return "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in inside).lstrip(".")
