"""The connection of the store over HTTP: requests to the API, tried again where that does no harm."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Coroutine
from typing import Any, Final, TypeVar
from urllib.parse import unquote, urlsplit

import httpx

from lightning_core.errors import (
    AccessError,
    ConfigError,
    DataError,
    LeaseLostError,
    LightningError,
    NotFoundError,
    ScopeError,
    StoreError,
)
from lightning_core.loop_thread import LoopThread
from lightning_core.stores.credentials import advice, takes_none
from lightning_core.stores.packing import as_plain, dump_json
from lightning_core.texts.json_text import EXACT_JSON, load_json

T = TypeVar("T")
TOKEN_NAME: Final = "LIGHTNING_API_TOKEN"
"""The environment variable with the token, for a URL that has none."""
BASE: Final = "/api/v1"
_ANSWER_SECONDS, _CONNECT_SECONDS = 60.0, 10.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
_AWAY: Final = (502, 503, 504)
"""Answers of a proxy, or of an API, that does not reach what is behind it."""
_ERRORS: Final[dict[str, type[LightningError]]] = {
    "invalid_token": AccessError,
    "forbidden": ScopeError,
    "not_found": NotFoundError,
    "lease_lost": LeaseLostError,
    "invalid_value": DataError,
    "invalid_json": DataError,
    "too_large": DataError,
}


class Link:
    """Requests to the API, made by a thread with an event loop of its own for callers on any loop."""

    def __init__(self, url: str, token: str, server_timeout: float) -> None:
        self._url = url
        self._token = token
        self._server_timeout = server_timeout
        self._away_since: float | None = None
        """Since when no request has been answered: all wait for the API together, once."""
        self._thread: LoopThread | None = None
        self._web: httpx.AsyncClient | None = None

    async def open(self) -> None:
        if self._thread is not None:
            raise StoreError(f"the store {self._url!r} is open already")
        self._thread = LoopThread("lightning-http-store")
        await self._run(self._connect())

    async def close(self) -> None:
        thread = self._thread
        if thread is not None:
            await self._run(self._disconnect())
            self._thread = None
            await asyncio.shield(asyncio.to_thread(thread.stop))

    async def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        query: dict[str, Any] | None = None,
        wait: float = 0.0,
        again: bool = True,
    ) -> Any:
        """Returns the API's answer, after at most `wait` seconds and the time that an answer takes. With
        `again` the request may be carried out twice. Raises the error that the store behind the API
        raised."""
        given = {name: value for name, value in (query or {}).items() if value is not None}
        request = httpx.Request(
            method,
            self._url + path,
            params=given,
            content=None if body is None else dump_json(as_plain(body)),
            headers=self._headers(),
            extensions={"timeout": _timeout(wait)},
        )
        status, content = await self._run(self._send(request, again))
        if status != 200:
            raise _error(status, content, f"{method} {self._url}{path}")
        return load_json(content)

    def _headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self._token}", "accept": EXACT_JSON, "content-type": EXACT_JSON}

    async def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._thread is None:
            work.close()
            raise StoreError(f"the store {self._url!r} is not open: use it inside `async with`")
        return await self._thread.run(work)

    # on the loop of the thread ---------------------------------------------------------------
    async def _connect(self) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
        # certificates are read only where they are needed: that takes 30 ms
        self._web = httpx.AsyncClient(limits=limits, verify=self._url.startswith("https:"))

    async def _disconnect(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        assert self._web is not None
        await self._web.aclose()

    async def _send(self, request: httpx.Request, again: bool) -> tuple[int, bytes]:
        assert self._web is not None
        pause = _FIRST_PAUSE
        while True:
            try:
                answer = await self._web.send(request)
            except httpx.TransportError as error:
                unsent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
                if not (again or unsent) or self._given_up():
                    raise self._no_answer(request, error) from error
            else:
                if not (again and answer.status_code in _AWAY) or self._given_up():
                    self._away_since = None
                    return answer.status_code, answer.content
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _given_up(self) -> bool:
        """Whether the API has been away for as long as it is waited for."""
        now = time.monotonic()
        self._away_since = self._away_since or now
        return now - self._away_since >= self._server_timeout

    def _no_answer(self, request: httpx.Request, error: httpx.TransportError) -> StoreError:
        return StoreError(
            f"the API at {self._url} did not answer {request.method} {request.url.path}: {error!r}; start it "
            "(agentlightning api), or check the store's URL"
        )


def address_of(url: str) -> tuple[str, str]:
    """(URL of the API, token) of a store's URL. Raises ConfigError for one that can't be used."""
    parts = urlsplit(url)
    token = unquote(parts.password or parts.username or "")
    if not takes_none(url):
        token = token or os.environ.get(TOKEN_NAME, "")
    host = parts.netloc.rpartition("@")[2]
    shown = f"{parts.scheme}://{host}{parts.path}"
    if not parts.hostname or parts.query or parts.fragment:
        raise ConfigError(f"store {shown!r} is no address of an API: write 'http://host:8100'")
    if not token:
        raise ConfigError(
            f"store {shown!r} needs a token of scope admin, made by `agentlightning token`. "
            + (advice(TOKEN_NAME, url) or f"Set {TOKEN_NAME} to it")
        )
    return f"{parts.scheme}://{host}{parts.path.rstrip('/').removesuffix(BASE)}{BASE}", token


def _error(status: int, content: bytes, request: str) -> LightningError:
    try:
        problem = load_json(content)["error"]
        kind, message = _ERRORS.get(problem["code"], StoreError), problem["message"]
    except (ValueError, KeyError, TypeError):  # of a proxy, or of another server
        return StoreError(f"{request} was answered with status {status} by what is no API of this package")
    return kind(message)


def _timeout(wait: float) -> dict[str, float | None]:
    """In seconds, as httpx's transport takes it."""
    answer = wait + _ANSWER_SECONDS
    return {"connect": _CONNECT_SECONDS, "read": answer, "write": _ANSWER_SECONDS, "pool": None}
