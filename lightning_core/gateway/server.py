"""A gateway, or the REST API, that listens: in a thread of its own, with an event loop of its own.

An app under training may block its event loop (a sync tool, a big parse); who serves it must go on
recording and streaming meanwhile, so a server never shares a loop with anything else.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol, Self

import uvicorn
from starlette.applications import Starlette

from lightning_core.errors import GatewayError
from lightning_core.gateway.limits import LIMITS, Bounded, HttpProtocol, Limits

_BACKLOG: Final = 4096
_KEEP_ALIVE_SECONDS: Final = 300
"""Longer than any client keeps an idle connection, so that it is never the server who closes one in use."""
_STOP_SECONDS: Final = 1
_OPEN_FILES: Final = 65_536


class Served(Protocol):
    """An app that can be served."""

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
    """Stop the server, also when the caller is cancelled meanwhile."""
    await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, thread.stop))


class ServerThread:
    """Serves an ASGI app from `start()` to `stop()`, once.

    `abort` is called in the server's loop when it must stop: it ends the replies that are on their way.
    """

    def __init__(self, app: Starlette, abort: Callable[[], None], name: str, limits: Limits = LIMITS) -> None:
        self._server = _Server(_config(app, limits), abort)
        self._name = name
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._stopped = False

    def start(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Listen and answer from now on; returns the base URL. GatewayError if that can't be."""
        with self._starting:
            if self._stopped:
                raise GatewayError(
                    f"the {self._name.removeprefix('lightning-')} was stopped before it could start"
                )
            return self._start(host, port)

    def _start(self, host: str, port: int) -> str:
        _allow_connections()
        what = self._name.removeprefix("lightning-")
        listener = _listen(host, port, what)
        host, port = listener.getsockname()[:2]
        self._thread = threading.Thread(
            target=_serve, args=(self._server, listener), name=self._name, daemon=True
        )
        self._thread.start()
        while not self._server.started:
            if not self._thread.is_alive():
                raise GatewayError(f"the {what} could not start on {host}:{port}; see the log")
            time.sleep(0.002)
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def stop(self) -> None:
        """End what is on its way, close every connection and wait for the thread. A start that is under way
        in another thread is waited for, and one that comes later is refused."""
        with self._starting:
            self._stopped = True
        if self._thread is not None:
            self._server.should_exit = True
            self._thread.join()


class _Server(uvicorn.Server):
    """Ends open replies before it waits for their connections to close."""

    def __init__(self, config: uvicorn.Config, abort: Callable[[], None]) -> None:
        super().__init__(config)
        self._abort = abort

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._abort()
        await super().shutdown(sockets)
        await self._give_up_on_the_rest()

    async def _give_up_on_the_rest(self) -> None:
        """Connections that are still open belong to clients that do not read what they are sent."""
        if tasks := tuple(self.server_state.tasks):  # cancelled by now; each still writes its record
            await asyncio.wait(tasks, timeout=_STOP_SECONDS)
        for connection in tuple(self.server_state.connections):
            if connection.transport is not None:
                connection.transport.abort()


def _config(app: Starlette, limits: Limits) -> uvicorn.Config:
    return uvicorn.Config(
        Bounded(app, limits),
        http=partial(HttpProtocol, limits),  # type: ignore[arg-type]
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        backlog=_BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=_STOP_SECONDS,
    )


def _allow_connections() -> None:
    """Raise this process's limit of open files: many systems start with 1024, one for each connection."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def check_free(host: str, port: int) -> None:
    """Raise GatewayError if a gateway could not listen there now."""
    _listen(host, port, "gateway").close()


def _listen(host: str, port: int, what: str) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise GatewayError(f"the {what} can't listen on {host!r}: {error}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise GatewayError(
            f"the {what} can't listen on {host}:{port}: {error}; choose another port"
        ) from error
    listener.setblocking(False)
    return listener


def _serve(server: uvicorn.Server, listener: socket.socket) -> None:
    with (
        contextlib.closing(listener),
        asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner,
    ):
        runner.run(server.serve(sockets=[listener]))
