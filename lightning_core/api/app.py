"""The API as an application: every operation of a store under `/api/v1`, and the document that says so.

FastAPI earns its place beside Starlette: it reads bodies and queries by their types, names the field that is
wrong, and writes the OpenAPI document. Code of our own for these three would be longer than the routes.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any, Final

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from lightning_core.api import leases, records, rollouts, runs
from lightning_core.api.routing import (
    DOCUMENTED,
    Problem,
    refuse_bug,
    refuse_http,
    refuse_input,
    refuse_lightning,
)
from lightning_core.errors import LightningError
from lightning_core.gateway.limits import Limits
from lightning_core.records.types import Record
from lightning_core.runner.gateways import GatewayFinder
from lightning_core.stores.base import Store

BASE: Final = "/api/v1"
LIMITS: Final = Limits(body_bytes=64 * 2**20)
"""Limits of a server of the API: a body may be a bulk of calls with long prompts."""
_ABOUT: Final = """\
Tasks, rollouts, calls, rewards, resources and metrics of runs, for workers and clients in any language.

Send a token, made by `agentlightning token`, as `Authorization: Bearer`. Its scope is `worker` (lease
rollouts and give an account of them), `client` (enqueue and read) or `admin` (everything), for one run or
for all.
"""


class Api:
    """Serves a store. `secret` signs the tokens that are for all runs; without it there are none."""

    def __init__(self, store: Store, *, secret: bytes | None = None) -> None:
        self._store = store
        self._secret = secret
        self._stopping = asyncio.Event()

    def app(self) -> FastAPI:
        """The ASGI application."""
        app = FastAPI(
            title="agent-lightning-core",
            version="1",
            description=_ABOUT,
            openapi_url=f"{BASE}/openapi.json",
            docs_url=None,  # its page would load scripts from elsewhere
            redoc_url=None,
            redirect_slashes=False,
            separate_input_output_schemas=False,
            generate_unique_id_function=lambda route: route.name,
            exception_handlers={
                LightningError: refuse_lightning,
                RequestValidationError: refuse_input,
                HTTPException: refuse_http,
                Exception: refuse_bug,
            },
        )
        app.state.store, app.state.secret, app.state.stopping = self._store, self._secret, self._stopping
        app.state.gateways = GatewayFinder(self._store)
        app.include_router(_health)
        for part in (rollouts, leases, records, runs):
            app.include_router(part.router, prefix=BASE, responses=DOCUMENTED)
        return _described(app)

    def abort(self) -> None:
        """Answer those who wait; for the event loop of the app."""
        self._stopping.set()


_health = APIRouter(tags=["server"])


@_health.get(f"{BASE}/health")
async def health() -> Response:
    """Whether the server is up; needs no token."""
    return JSONResponse({"status": "ok"})


# the OpenAPI document -------------------------------------------------------------------------------
def _described(app: FastAPI) -> FastAPI:
    """The same app, whose document has the docstrings of fields.

    pydantic describes a type by its docstring but leaves out those of its fields. They are read from the
    source when the document is asked for the first time: `use_attribute_docstrings` reads it at import.
    """
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schemas = plain()["components"]["schemas"]
            for model in _models(Record, Problem):
                _describe(schemas.get(model.__name__, {}), model)
        assert app.openapi_schema is not None
        return app.openapi_schema

    setattr(app, "openapi", openapi)  # noqa: B010 - the documented way to extend it, which mypy can't see
    return app


def _models(*roots: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for root in roots:
        yield root
        yield from _models(*root.__subclasses__())


def _describe(schema: dict[str, Any], model: type[BaseModel]) -> None:
    for name, words in _field_docstrings(model).items():
        if name in schema.get("properties", {}):
            schema["properties"][name].setdefault("description", words)


def _field_docstrings(model: type[BaseModel]) -> dict[str, str]:
    """Returns the docstring under each field of a class; empty for one that was made without source."""
    try:
        source = inspect.getsource(model)
    except OSError:
        return {}
    (found,) = ast.parse(textwrap.dedent(source)).body
    assert isinstance(found, ast.ClassDef)
    return {
        field.target.id: inspect.cleandoc(words.value.value)
        for field, words in zip(found.body, found.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(words, ast.Expr)
        and isinstance(words.value, ast.Constant)
        and isinstance(words.value.value, str)
    }
