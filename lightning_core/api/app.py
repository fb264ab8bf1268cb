"""The API as an application: every operation of a store under `/api/v1`, and the document that says so."""

from __future__ import annotations

import asyncio
from typing import Final

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from lightning_core.api import queue, records, runs, working
from lightning_core.api.gateways import Gateways
from lightning_core.api.openapi import describe
from lightning_core.api.refusals import (
    DOCUMENTED,
    refuse_bug,
    refuse_http,
    refuse_input,
    refuse_lightning,
)
from lightning_core.errors import LightningError
from lightning_core.gateway.limits import Limits
from lightning_core.stores.base import Store

BASE: Final = "/api/v1"
LIMITS: Final = Limits(body_bytes=64 * 2**20)
"""What a server of it takes: a body may be a bulk of calls with long prompts."""
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
            generate_unique_id_function=_name,
            exception_handlers={
                LightningError: refuse_lightning,
                RequestValidationError: refuse_input,
                HTTPException: refuse_http,
                Exception: refuse_bug,
            },
        )
        app.state.store, app.state.secret, app.state.stopping = self._store, self._secret, self._stopping
        app.state.gateways = Gateways(self._store)
        app.include_router(_health)
        for part in (queue, working, records, runs):
            app.include_router(part.router, prefix=BASE, responses=DOCUMENTED)
        return describe(app)

    def abort(self) -> None:
        """Answer those who wait; for the event loop of the app."""
        self._stopping.set()


_health = APIRouter(tags=["server"])


@_health.get(f"{BASE}/health")
async def health() -> Response:
    """Whether the server is up; needs no token."""
    return JSONResponse({"status": "ok"})


def _name(route: APIRoute) -> str:
    return route.name
