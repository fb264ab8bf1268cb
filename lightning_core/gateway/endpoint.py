"""One endpoint, whatever its dialect: admit, sample, record, answer; in that order.

A dialect reads requests and writes replies. What lies between the two, and all that the recording laws
ask for, is here, once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Generic, Protocol, TypeVar

from starlette.types import Receive, Scope, Send

from lightning_core.errors import GatewayError
from lightning_core.gateway.access import Access, Caller
from lightning_core.gateway.exchange import Exchange, Exchanges, disconnected, stopped
from lightning_core.gateway.pins import address
from lightning_core.gateway.recording import Body, Recording
from lightning_core.gateway.refusals import CONTEXT_LENGTH, Refusal, refusal_of
from lightning_core.gateway.upstream import Delta, Upstream
from lightning_core.gateway.wire import (
    read_body,
    read_content,
    send_events,
    send_json,
    start_events,
    wait_disconnect,
)

AnyBody = TypeVar("AnyBody", bound=Body)


class Reply(Protocol):
    """Writes the replies to one call."""

    def whole(self) -> dict[str, Any]:
        """The reply as one JSON object, once the call is recorded."""

    def opening(self) -> bytes:
        """The events before the first piece."""

    def pieces(self, deltas: Iterable[Delta]) -> bytes:
        """The events of what was just sampled; may be none."""

    def ending(self) -> bytes:
        """The events after the last piece, once the call is recorded."""

    def failing(self, refusal: Refusal) -> bytes:
        """The event that ends a stream which can't be completed."""


class Dialect(Protocol[AnyBody]):
    """One API that the gateway speaks."""

    name: str
    """As it is recorded: `Call.dialect`."""
    prompt: str
    """The field that holds the prompt, for errors about it."""

    def read(self, content: bytes, caller: Caller) -> AnyBody:
        """The request in `content`. The caller's sampling, where given, takes the place of the app's own.
        Safe in any thread.

        Raises Refusal for what is not valid or can't be honoured.
        """

    def reply(self, recording: Recording, body: AnyBody) -> Reply:
        """The writer of this call's reply."""

    def error(self, refusal: Refusal) -> dict[str, Any]:
        """The JSON of a request that is refused."""


class Endpoint(Generic[AnyBody]):
    """Serves one dialect, as an ASGI application."""

    def __init__(
        self, dialect: Dialect[AnyBody], upstream: Upstream, access: Access, exchanges: Exchanges
    ) -> None:
        self._dialect = dialect
        self._upstream = upstream
        self._access = access
        self._exchanges = exchanges

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            caller = self._access.admit_json(scope)
            self._exchanges.check(caller)
            content = await read_body(receive)
            if content is None:
                return
            body = await read_content(content, lambda content: self._dialect.read(content, caller))
            request = address(body.request, caller, body.model, self._upstream.model_name)
        except GatewayError as error:
            await self._refuse(refusal_of(error), send)
            return
        recording = Recording(caller, body, self._dialect.name)
        exchange = Exchange(recording, self._upstream, request)
        reply = self._dialect.reply(recording, body)
        self._exchanges.start(exchange)
        watch = asyncio.create_task(_watch(exchange, receive))
        try:
            if body.stream:
                await self._stream(exchange, reply, send)
            else:
                await self._answer(exchange, reply, send)
        except asyncio.CancelledError:  # the server gives up on a client that does not read
            exchange.abort(stopped())
            await exchange.finished()
            await self._exchanges.record(exchange)
            raise
        finally:
            watch.cancel()

    async def _answer(self, exchange: Exchange, reply: Reply, send: Send) -> None:
        await exchange.finished()
        failure = await self._exchanges.record(exchange)
        if failure is None:
            await send_json(send, reply.whole(), headers=_headers(exchange.recording))
        else:
            await self._refuse(failure, send)

    async def _stream(self, exchange: Exchange, reply: Reply, send: Send) -> None:
        started = False
        while deltas := await exchange.next_deltas():
            events = b"" if started else reply.opening()
            events += reply.pieces(deltas)
            if not started:
                await start_events(send, _headers(exchange.recording))
                started = True
            if events:
                await send_events(send, events, more=True)
        failure = await self._exchanges.record(exchange)
        if failure is None:
            await send_events(send, reply.ending(), more=False)
        elif started:
            await send_events(send, reply.failing(failure), more=False)
        else:
            await self._refuse(failure, send)

    async def _refuse(self, refusal: Refusal, send: Send) -> None:
        if refusal.code == CONTEXT_LENGTH:
            refusal.param = self._dialect.prompt
        await send_json(send, self._dialect.error(refusal), status=refusal.status)


async def _watch(exchange: Exchange, receive: Receive) -> None:
    await wait_disconnect(receive)
    exchange.abort(disconnected())


def _headers(recording: Recording) -> list[tuple[bytes, bytes]]:
    return [
        (b"x-request-id", recording.caller.call_id.encode("ascii", "replace")),
        (b"x-lightning-policy-version", str(recording.policy_version).encode()),
    ]
