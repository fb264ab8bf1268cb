"""The console as a web application: a page, its scripts, and the answers that they show.

Every answer is one address, `/api/NAME?run=...`, made by one function of `ANSWERS`; an exported page holds
the same answers (`export`). What a model or an app wrote is in them as JSON, and the page shows it as text.
"""

from __future__ import annotations

import secrets
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping
from hashlib import sha256
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Final

import orjson
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lightning_core.console import models, reasons, rollouts, runs, times
from lightning_core.console.access import ANSWERS as BASE
from lightning_core.console.access import Guard
from lightning_core.console.asking import Question
from lightning_core.console.shelf import Shelf
from lightning_core.errors import AccessError, ConfigError, LightningError, NotFoundError

Answer = Callable[[Question], Awaitable[Any]]
ANSWERS: Final[Mapping[str, Answer]] = MappingProxyType(
    {**runs.ANSWERS, **rollouts.ANSWERS, **models.ANSWERS, **reasons.ANSWERS, **times.ANSWERS}
)
"""What is read, by the last part of its address."""
VERBS: Final[Mapping[str, Answer]] = models.VERBS
"""What writes: sent by POST, as JSON, which no other site's page may send unasked."""
_ASSETS: Final = files("lightning_core.console") / "assets"
_KINDS: Final = MappingProxyType({"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"})
START: Final = 'import "console/app.js";'
_MAP: Final = '{"imports":{"console/":"/assets/"}}'
POLICY: Final = (
    "default-src 'none'; script-src 'self' {scripts}; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class Console:
    """Serves a shelf of runs (`gateway.server.Served`)."""

    def __init__(self, shelf: Shelf) -> None:
        self.token = secrets.token_urlsafe(24)
        """Opens it: part of the address that is printed."""
        self._shelf = shelf

    def app(self) -> Starlette:
        """The ASGI application."""
        policy = POLICY.format(scripts=" ".join(f"'sha256-{digest(each)}'" for each in (_MAP, START)))
        routes = [
            Route("/", _page),
            Route("/assets/{name}", _asset),
            Route(BASE + "{name}", self._answer, methods=["GET"]),
            Route(BASE + "{name}", self._do, methods=["POST"]),
        ]
        return Starlette(routes=routes, middleware=[Middleware(Guard, token=self.token, policy=policy)])

    def abort(self) -> None:
        """No answer takes long enough to be ended."""

    async def _answer(self, request: Request) -> Response:
        return await self._reply(ANSWERS, request.path_params["name"], request.query_params.multi_items())

    async def _do(self, request: Request) -> Response:
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            return _json({"error": "send application/json"}, 415)
        try:
            given = orjson.loads(await request.body())
            asked = [(str(name), str(value)) for name, value in given.items()]
        except (ValueError, AttributeError):
            return _json({"error": "the body is no JSON object"}, 400)
        return await self._reply(VERBS, request.path_params["name"], asked)

    async def _reply(self, known: Mapping[str, Answer], name: str, asked: list[tuple[str, str]]) -> Response:
        if name not in known:
            return _json({"error": f"there is no answer {name!r}"}, 404)
        try:
            return _json(await known[name](Question(self._shelf, asked)))
        except LightningError as error:
            return _json({"error": str(error)}, _status(error))


def _status(error: LightningError) -> int:
    match error:
        case NotFoundError():
            return 404
        case ConfigError():
            return 400
        case AccessError():
            return 403
    return 500


def _json(value: Any, status: int = 200) -> Response:
    return Response(to_json(value), status, media_type="application/json")


def to_json(value: Any) -> bytes:
    """An answer as it is sent: a number that is not finite becomes null."""
    return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY)


async def _page(request: Request) -> Response:
    head = '<link rel="stylesheet" href="/assets/uplot.css"><link rel="stylesheet" href="/assets/style.css">'
    return Response(page(head, _MAP, ""), media_type="text/html")


async def _asset(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in asset_names():
        return _json({"error": f"there is no file {name!r}"}, 404)
    return Response(read_asset(name), media_type=_KINDS[name.rpartition(".")[2]])


def asset_names() -> list[str]:
    """The files that a browser may load."""
    return sorted(file.name for file in _ASSETS.iterdir() if file.name.rpartition(".")[2] in _KINDS)


def read_asset(name: str) -> str:
    """One of them."""
    return (_ASSETS / name).read_text()


def page(head: str, imports: str, data: str) -> str:
    """The page around its scripts: `imports` says where they lie, `data` is what an exported page holds."""
    written = read_asset("page.html").replace("<!--head-->", head)
    return written.replace("<!--imports-->", imports).replace("<!--data-->", data)


def digest(script: str) -> str:
    """By which a Content-Security-Policy admits a script that stands in the page."""
    return b64encode(sha256(script.encode()).digest()).decode()
