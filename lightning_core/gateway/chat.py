"""`POST /v1/chat/completions`: admit, sample, record, answer; in that order."""

from __future__ import annotations

import asyncio

from starlette.types import Receive, Scope, Send

from lightning_core.errors import GatewayError
from lightning_core.gateway.access import Access
from lightning_core.gateway.exchange import Exchange, Exchanges, disconnected, stopped
from lightning_core.gateway.parameters import read_chat
from lightning_core.gateway.recording import Recording
from lightning_core.gateway.refusals import refusal_of
from lightning_core.gateway.replies import Reply, TokenText
from lightning_core.gateway.upstream import Upstream
from lightning_core.gateway.wire import (
    event,
    read_body,
    send_events,
    send_json,
    start_events,
    wait_disconnect,
)


class ChatCompletions:
    """The endpoint, as an ASGI application."""

    def __init__(self, upstream: Upstream, access: Access, exchanges: Exchanges) -> None:
        self._upstream = upstream
        self._access = access
        self._exchanges = exchanges
        self._tokens = TokenText(upstream.decode)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        content = await read_body(receive)
        if content is None:
            return
        try:
            caller = self._access.admit(scope)
            recording = Recording(caller, read_chat(content, caller.sampling))
        except GatewayError as error:
            await refusal_of(error).send(send)
            return
        exchange = Exchange(recording, self._upstream)
        reply = Reply(recording, self._tokens, self._upstream.model_name)
        self._exchanges.start(exchange)
        watch = asyncio.create_task(_watch(exchange, receive))
        try:
            if recording.body.stream:
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
            await send_json(send, reply.completion(), headers=_headers(exchange.recording))
        else:
            await failure.send(send)

    async def _stream(self, exchange: Exchange, reply: Reply, send: Send) -> None:
        started = False
        while deltas := await exchange.next_deltas():
            chunks = reply.chunks(deltas)
            if not started:
                await start_events(send, _headers(exchange.recording))
                chunks = reply.opening() + chunks
                started = True
            if chunks:
                await send_events(send, chunks, more=True)
        failure = await self._exchanges.record(exchange)
        if failure is None:
            await send_events(send, reply.ending(), more=False)
        elif started:
            await send_events(send, event(failure.body()), more=False)
        else:
            await failure.send(send)


async def _watch(exchange: Exchange, receive: Receive) -> None:
    await wait_disconnect(receive)
    exchange.abort(disconnected())


def _headers(recording: Recording) -> list[tuple[bytes, bytes]]:
    return [
        (b"x-request-id", recording.caller.call_id.encode("ascii", "replace")),
        (b"x-lightning-policy-version", str(recording.policy_version).encode()),
    ]
