"""The console as a web application: a page, its scripts, and the answers that they show.

Every answer is one address, `/api/NAME?run=...`, made by one function of `ANSWERS`; a saved page holds
the same answers (`saving`). What a model or an app wrote is in them as JSON, and the page shows it as text.

Who may look: whoever has the token of the printed address, from this machine, and no other web page. The
token opens a session once and is then kept in a cookie that no script can read and that no other site's page
makes the browser send. `Host` is checked, since a foreign name may be made to resolve to this machine (DNS
rebinding), and `Origin`, since a browser names the page that sends. The page itself and its scripts hold
nothing of a run and are sent to anybody; every answer about a run needs the cookie.
"""

from __future__ import annotations

import hmac
import logging
import secrets
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping
from hashlib import sha256
from http.cookies import CookieError, SimpleCookie
from importlib.resources import files
from ipaddress import ip_address
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import urlsplit

import orjson
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lightning_core.console import forks, models, reasons, rollouts, runs, sandbox
from lightning_core.console.asking import PageRequest
from lightning_core.console.shelf import Shelf
from lightning_core.errors import AccessError, ApiError, ConfigError, DataError, LightningError, NotFoundError
from lightning_core.texts.json_text import whole

log = logging.getLogger(__name__)

Answer = Callable[[PageRequest], Awaitable[Any]]
ANSWERS: Final[Mapping[str, Answer]] = MappingProxyType(
    {
        **runs.ANSWERS,
        **rollouts.ANSWERS,
        **models.ANSWERS,
        **reasons.ANSWERS,
        **sandbox.ANSWERS,
        **forks.ANSWERS,
    }
)
"""The answers to GET, by the last part of the address."""
VERBS: Final[Mapping[str, Answer]] = MappingProxyType({**models.VERBS, **sandbox.VERBS, **forks.VERBS})
"""The answers to POST, with JSON, which no other site's page may send unasked."""
_BASE: Final = "/api/"
"""Under which the answers about runs lie."""
_ASSETS: Final = files("lightning_core.console") / "assets"
_KINDS: Final = MappingProxyType({"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"})
START: Final = 'import "console/app.js";'
_MAP: Final = '{"imports":{"console/":"/assets/"}}'
POLICY: Final = (
    "default-src 'none'; script-src 'self' {scripts}; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_BITS: Final = 63
"""Bits of the integers that every reader of JSON takes, beside the sign."""
_COOKIE: Final = "lightning-console"
_HEADERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cache-Control": "no-store",
    }
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
            Route(_BASE + "{name}", self._answer, methods=["GET"]),
            Route(_BASE + "{name}", self._do, methods=["POST"]),
        ]
        return Starlette(routes=routes, middleware=[Middleware(Guard, token=self.token, policy=policy)])

    def abort(self) -> None:
        """No answer takes long enough to be ended."""

    async def _answer(self, request: Request) -> Response:
        return await self._reply(ANSWERS, request.path_params["name"], request.query_params.multi_items())

    async def _do(self, request: Request) -> Response:
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            return _refuse(415, "send application/json")
        try:
            given = orjson.loads(await request.body())
        except ApiError as error:  # it is too long, or too slow
            return _refuse(error.status, str(error))
        except ValueError:
            return _refuse(400, "the body is no JSON object")
        try:
            asked = [(str(name), str(value)) for name, value in given.items()]
        except AttributeError:
            return _refuse(400, "the body is no JSON object")
        return await self._reply(VERBS, request.path_params["name"], asked)

    async def _reply(self, known: Mapping[str, Answer], name: str, asked: list[tuple[str, str]]) -> Response:
        if name not in known:
            return _refuse(404, f"there is no answer {name!r}")
        try:
            return _json(await known[name](PageRequest(self._shelf, asked)))
        except LightningError as error:
            return _refuse(_status(error), str(error))
        except (TypeError, ValueError, KeyError, AttributeError) as error:  # records may hold any type
            log.exception("the console could not answer %r", name)
            said = f"{type(error).__name__}: {error}"
            return _refuse(500, f"a record is not of the type that training writes ({said})")


def _status(error: LightningError) -> int:
    match error:
        case NotFoundError():
            return 404
        case ConfigError() | DataError():
            return 400
        case AccessError():
            return 403
    return 500


def _json(value: Any, status: int = 200) -> Response:
    return Response(to_json(value), status, media_type="application/json")


def _refuse(status: int, message: str) -> Response:
    return _json({"error": message}, status)


def to_json(value: Any) -> bytes:
    """An answer as it is sent: a number that is not finite becomes null, an integer of more than 64 bits
    text."""
    option = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY
    try:
        return orjson.dumps(value, option=option)
    except TypeError:
        return orjson.dumps(_plain(value), option=option)


def _plain(value: Any) -> Any:
    """The value with whole characters, and with integers of 64 bits."""
    match value:
        case str():
            return whole(value)
        case int() if value.bit_length() > _BITS:
            return str(value)
        case dict():
            return {_plain(name): _plain(each) for name, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
    return value


async def _page(request: Request) -> Response:
    head = '<link rel="stylesheet" href="/assets/uplot.css"><link rel="stylesheet" href="/assets/style.css">'
    return Response(page(head, _MAP, ""), media_type="text/html")


async def _asset(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in asset_names():
        return _refuse(404, f"there is no file {name!r}")
    return Response(read_asset(name), media_type=_KINDS[name.rpartition(".")[2]])


def asset_names() -> list[str]:
    """The files that a browser may load."""
    return sorted(file.name for file in _ASSETS.iterdir() if file.name.rpartition(".")[2] in _KINDS)


def read_asset(name: str) -> str:
    """One of them."""
    return (_ASSETS / name).read_text()


def page(head: str, imports: str, data: str) -> str:
    """The page around its scripts: `imports` says where they lie, `data` is what a saved page holds."""
    written = read_asset("page.html").replace("<!--head-->", head)
    return written.replace("<!--imports-->", imports).replace("<!--data-->", data)


def digest(script: str) -> str:
    """Returns the digest by which a Content-Security-Policy admits a script in the page."""
    return b64encode(sha256(script.encode()).digest()).decode()


# who may look ------------------------------------------------------------------------------
class Guard:
    """An ASGI app behind the checks above; every reply bears the headers that hold a browser to them."""

    def __init__(self, app: ASGIApp, token: str, policy: str) -> None:
        """`policy` is the Content-Security-Policy of every reply."""
        self._app = app
        self._token = token
        self._headers = {**_HEADERS, "Content-Security-Policy": policy}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(self._headers)
            await send(message)

        await (self._answer(Request(scope)) or self._app)(scope, receive, with_headers)

    def _answer(self, request: Request) -> Response | None:
        """The reply to whom is not let in, or who has just come in; None for the others."""
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        if not _is_here(host):
            return _refuse(400, f"the Host {host!r} is not this machine; open the address that was printed")
        if origin not in (None, f"http://{host}"):
            return _refuse(403, f"the Origin {origin!r} is another page's; open the address that was printed")
        given = request.query_params.get("token")
        if given is not None and self._is_token(given):
            return self._let_in(request)
        if request.url.path.startswith(_BASE) and not self._is_token(self._kept(request.headers)):
            return _refuse(401, "no token: open the address that `agentlightning console` printed")
        return None

    def _let_in(self, request: Request) -> Response:
        reply = RedirectResponse(request.url.path, status_code=303)
        reply.set_cookie(self._name(request.headers), self._token, httponly=True, samesite="strict")
        return reply

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token.encode())

    def _kept(self, headers: Headers) -> str:
        try:
            found = SimpleCookie(headers.get("cookie", "")).get(self._name(headers))
        except CookieError:
            return ""
        return "" if found is None else found.value

    def _name(self, headers: Headers) -> str:
        """Returns the name of the cookie: a browser keeps the cookies of all ports of a host together."""
        return f"{_COOKIE}-{_port(headers.get('host', ''))}"


def _port(host: str) -> int:
    try:
        return urlsplit(f"//{host}").port or 80
    except ValueError:
        return 0


def _is_here(host: str) -> bool:
    """Whether it names this machine, as a loopback address or `localhost` do."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"
