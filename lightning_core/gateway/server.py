"""A gateway that listens."""

from __future__ import annotations

import asyncio
from typing import Protocol, Self

from starlette.applications import Starlette

from lightning_core.errors import GatewayError
from lightning_core.gateway.limits import LIMITS, Limits
from lightning_core.gateway.thread import ServerThread


class Served(Protocol):
    """What can be served."""

    def app(self) -> Starlette:
        """The ASGI application."""

    def abort(self) -> None:
        """End what is on its way; for the event loop of the app."""


class GatewayServer:
    """Serves a gateway, or the REST API, over HTTP while its `async with` block runs, in a thread of its own.

    Binds to this machine only, on a free port, unless told otherwise. Leaving the block ends what is
    still on its way; those calls are recorded as cancelled. `limits` bound each request.
    """

    def __init__(
        self,
        gateway: Served,
        host: str = "127.0.0.1",
        port: int = 0,
        name: str = "lightning-gateway",
        *,
        limits: Limits = LIMITS,
    ) -> None:
        self._gateway = gateway
        self._host = host
        self._port = port
        self._name = name
        self._limits = limits
        self._thread: ServerThread | None = None
        self._url = ""

    @property
    def url(self) -> str:
        """Base URL, without `/v1`."""
        if not self._url:
            raise GatewayError("the gateway is not running; use its url inside `async with`")
        return self._url

    async def __aenter__(self) -> Self:
        thread = ServerThread(self._gateway.app(), self._gateway.abort, self._name, self._limits)
        try:
            self._url = await asyncio.to_thread(thread.start, self._host, self._port)
        except BaseException:  # cancelled, most likely; the thread that starts it is not
            await _stop(thread)
            raise
        self._thread = thread
        return self

    async def __aexit__(self, *exc: object) -> None:
        thread, self._thread, self._url = self._thread, None, ""
        if thread is not None:
            await _stop(thread)


async def _stop(thread: ServerThread) -> None:
    """Whoever waits for it may be cancelled, also before it has begun; the server stops all the same."""
    await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, thread.stop))
