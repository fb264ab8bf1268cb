"""The gateway's own thread and event loop.

An app under training may block its event loop (a sync tool, a big parse); the gateway must go on
recording and streaming meanwhile, so it never shares a loop with anything else.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import threading
from typing import Final, Self

import uvicorn

from lightning_core.errors import GatewayError
from lightning_core.gateway.app import Gateway

_BACKLOG: Final = 4096
_KEEP_ALIVE_SECONDS: Final = 300
"""Longer than any client keeps an idle connection, so that it is never the server who closes one in use."""
_STOP_SECONDS: Final = 1
_OPEN_FILES: Final = 65_536


class GatewayServer:
    """Serves a gateway over HTTP while its `async with` block runs.

    Binds to this machine only, on a free port, unless told otherwise. Leaving the block ends what is
    still on its way; those calls are recorded as cancelled.
    """

    def __init__(self, gateway: Gateway, host: str = "127.0.0.1", port: int = 0) -> None:
        self._gateway = gateway
        self._host = host
        self._port = port
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None
        self._url = ""

    @property
    def url(self) -> str:
        """Base URL, without `/v1`."""
        if not self._url:
            raise GatewayError("the gateway is not running; use its url inside `async with`")
        return self._url

    async def __aenter__(self) -> Self:
        _allow_connections()
        listener = _listen(self._host, self._port)
        host, port = listener.getsockname()[:2]
        self._server = _Server(_config(self._gateway), self._gateway)
        self._thread = threading.Thread(
            target=_serve, args=(self._server, listener), name="lightning-gateway", daemon=True
        )
        self._thread.start()
        while not self._server.started:
            if not self._thread.is_alive():
                raise GatewayError(f"the gateway could not start on {host}:{port}; see the log")
            await asyncio.sleep(0.002)
        self._url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            await asyncio.to_thread(self._thread.join)
        self._server, self._thread, self._url = None, None, ""


class _Server(uvicorn.Server):
    """Ends open calls before it waits for their connections to close."""

    def __init__(self, config: uvicorn.Config, gateway: Gateway) -> None:
        super().__init__(config)
        self._gateway = gateway

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._gateway.abort()
        await super().shutdown(sockets)
        await self._give_up_on_the_rest()

    async def _give_up_on_the_rest(self) -> None:
        """Connections that are still open belong to clients that do not read what they are sent."""
        if tasks := tuple(self.server_state.tasks):  # cancelled by now; each still writes its record
            await asyncio.wait(tasks, timeout=_STOP_SECONDS)
        for connection in tuple(self.server_state.connections):
            if connection.transport is not None:
                connection.transport.abort()


def _config(gateway: Gateway) -> uvicorn.Config:
    return uvicorn.Config(
        gateway.app(),
        http="httptools",
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


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise GatewayError(f"the gateway can't listen on {host!r}: {error}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise GatewayError(
            f"the gateway can't listen on {host}:{port}: {error}; choose another port"
        ) from error
    listener.setblocking(False)
    return listener


def _serve(server: uvicorn.Server, listener: socket.socket) -> None:
    with (
        contextlib.closing(listener),
        asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner,
    ):
        runner.run(server.serve(sockets=[listener]))
