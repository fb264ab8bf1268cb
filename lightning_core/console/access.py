"""Who may look: whoever has the token of the printed address, from this machine, and no other web page.

The token opens a session once and is then kept in a cookie that no script can read and that no other site's
page makes the browser send. `Host` is checked, since a foreign name may be made to resolve to this machine
(DNS rebinding), and `Origin`, since a browser names the page that sends. The page itself and its scripts hold
nothing of a run and are sent to anybody; every answer about a run needs the cookie.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from ipaddress import ip_address
from types import MappingProxyType
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

ANSWERS: Final = "/api/"
"""Under which the answers about runs lie."""
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
        if request.url.path.startswith(ANSWERS) and not self._is_token(self._kept(request.headers)):
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
        """Of the cookie: a browser keeps those of all ports of a host together."""
        return f"{_COOKIE}-{_port(headers.get('host', ''))}"


def _refuse(status: int, message: str) -> Response:
    return JSONResponse({"error": message}, status)


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
