"""One endpoint, whatever its dialect: admit, sample, record, answer; in that order.

A dialect reads requests and writes replies. What lies between the two, and all that the recording laws
ask for, is here, once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import orjson
from starlette.types import Receive, Scope, Send

from lightning_core.dialects.base import Dialect, ReplyWriter, Request
from lightning_core.dialects.constraints import in_words
from lightning_core.dialects.lenient import Json
from lightning_core.dialects.upstream import ChatRequest, Upstream
from lightning_core.dialects.writing import ServedModel, to_json
from lightning_core.errors import ApiError, ConfigError, GatewayError, NotFoundError
from lightning_core.gateway.access import Access, Caller
from lightning_core.gateway.errors import CONTEXT_LENGTH, api_error_of
from lightning_core.gateway.exchange import Exchange, Exchanges, disconnected, next_deltas, stopped
from lightning_core.gateway.forks import Forks, RecordedReply
from lightning_core.gateway.naming import Naming
from lightning_core.gateway.recording import Recording, refused_call
from lightning_core.gateway.versions import pin
from lightning_core.gateway.wire import (
    read_body,
    read_content,
    send_events,
    send_json,
    start_events,
    wait_disconnect,
)
from lightning_core.prompts import PinnedPrompts, put_in

log = logging.getLogger(__name__)
_LONGEST: Final = 500
"""Characters of a call's id that stay if a number is added."""


class Endpoint:
    """Serves one dialect, as an ASGI application."""

    def __init__(
        self,
        dialect: Dialect,
        models: Mapping[str | None, ServedModel],
        upstream: Upstream,
        access: Access,
        exchanges: Exchanges,
        prompts: PinnedPrompts | None,
        naming: Naming,
        forks: Forks,
    ) -> None:
        """`models`: that of each named policy; None: the run's own."""
        self._dialect = dialect
        self._models = models
        self._upstream = upstream
        self._access = access
        self._exchanges = exchanges
        self._prompts = prompts
        self._naming = naming
        self._policies = frozenset(access.policies.values())
        self._forks = forks
        self._told: set[str] = set()
        """Agents whose own sampling settings were replaced, which the log says."""
        self._not_offered: set[tuple[str, str]] = set()
        """Agents and the hosted tools that their model is not offered, which the log says."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            asked_by = await self._admit(scope, receive)
        except GatewayError as error:
            await self._refuse(api_error_of(error), send)
            return
        if asked_by is None:
            return
        caller, content = asked_by
        try:
            caller = self._named(caller, content)
            parts = await read_content(content, self._dialect.split)
            callers = [caller] if len(parts) == 1 else [_part(caller, index) for index in range(len(parts))]
            fresh = asyncio.Event()
            exchanges = [await self._begin(*each, fresh) for each in zip(callers, parts, strict=True)]
        except GatewayError as error:
            refusal = api_error_of(error)
            if caller.rollout_id is not None and not self._dialect.sends_again(refusal):
                await self._exchanges.refuse(refused_call(caller, self._dialect, content, refusal))
            await self._refuse(refusal, send)
            return
        sampled = [exchange.recording.sampled for exchange in exchanges]
        first = exchanges[0].recording
        request = first.request
        reply = self._dialect.joined(sampled, request, self._models[first.policy])
        for exchange in exchanges:
            self._exchanges.start(exchange)
        watch = asyncio.create_task(_watch(exchanges, receive))
        try:
            if request.stream:
                await self._stream(exchanges, fresh, reply, send)
            else:
                await self._answer(exchanges, reply, send)
        except asyncio.CancelledError:  # the server gives up on a client that does not read
            for exchange in exchanges:
                exchange.abort(stopped())
            for exchange in exchanges:
                await exchange.finished()
                await self._exchanges.record(exchange)
            raise
        finally:
            watch.cancel()

    async def _begin(self, caller: Caller, content: bytes, fresh: asyncio.Event) -> Exchange:
        """A call that can be started. Raises GatewayError if it is refused."""
        content = await self._with_prompt(content, caller)
        request = await read_content(content, lambda content: self._read(content, caller))
        self._tell_replaced(caller, request)
        self._tell_not_offered(caller, request)
        place = await self._forks.find(caller, request, self._dialect.name)
        if place is not None:  # under the recorded id, so that the ids in replies are those on record
            caller = replace(caller, call_id=place.call.id)
        if place is not None and not place.sampled:
            recording = Recording(replace(caller, trained=False), request, self._dialect, place.call.policy)
            return Exchange(recording, RecordedReply(place.call).begin, request.chat, fresh)
        if place is not None and place.prompt is not None:
            content = to_json({**request.raw, **place.prompt})
            request = await read_content(content, lambda content: self._read(content, caller))
        asked = self._pinned(replace(request.chat, whole=not request.stream), caller, request.model)
        recording = Recording(caller, request, self._dialect, asked.policy)
        return Exchange(recording, self._upstream.chat, asked, fresh)

    async def count(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer how many tokens a prompt has. Nothing is sampled or recorded."""
        try:
            asked_by = await self._admit(scope, receive)
            if asked_by is None:
                return
            caller, content = self._named(*asked_by), asked_by[1]
            content = await self._with_prompt(content, caller)
            owner = caller.rollout_id, caller.attempt
            asked = await read_content(content, lambda content: self._dialect.read_counted(content, owner))
            tokens = await self._upstream.count(self._pinned(asked.chat, caller, asked.model))
        except GatewayError as error:
            await self._refuse(api_error_of(error), send)
            return
        await send_json(send, self._dialect.counted(tokens))

    def _pinned(self, chat: ChatRequest, caller: Caller, model: str) -> ChatRequest:
        """The request with the policy and version that are to answer it. Raises ApiError."""
        return pin(chat, caller, model, self._upstream.model_name, self._policies)

    async def _admit(self, scope: Scope, receive: Receive) -> tuple[Caller, bytes] | None:
        """The caller and the request; None if the client has left."""
        caller = self._access.admit_json(scope)
        self._exchanges.check(caller)
        content = await read_body(receive)
        return None if content is None else (caller, content)

    def _named(self, caller: Caller, content: bytes) -> Caller:
        """The caller under the name that a rule of the run gives to its request, if one does."""
        if not self._naming or caller.by_header or caller.rollout_id is None:
            return caller
        body = _json_object(content)
        agent = None if body is None else self._naming.find(type(self._dialect), body)
        return caller if agent is None else self._access.named(caller, agent)

    def _read(self, content: bytes, caller: Caller) -> Request:
        request = self._dialect.read(content, caller.sampling, (caller.rollout_id, caller.attempt))
        if caller.sampling is None or caller.sampling.constrain or request.chat.constraint is None:
            return request
        return replace(request, chat=in_words(request.chat))

    async def _with_prompt(self, content: bytes, caller: Caller) -> bytes:
        """The request with the prompt that the caller's rollout is pinned to. What is no JSON object
        is left to be refused as such."""
        prompts = self._prompts
        if prompts is None or caller.agent not in caller.prompt_versions:
            return content
        body = _json_object(content)
        if body is None:
            return content
        try:
            pinned = await prompts.find({caller.agent: caller.prompt_versions[caller.agent]})
            return orjson.dumps(put_in(caller.agent, pinned[caller.agent], type(self._dialect), body))
        except (ConfigError, NotFoundError) as error:
            raise ApiError(str(error), code="other_prompt", param=self._dialect.prompt) from error

    def _tell_replaced(self, caller: Caller, request: Request) -> None:
        """Warn, once for each agent, that the sampling settings which the app gives do not act."""
        if caller.sampling is None or caller.agent in self._told:
            return
        given = {name: request.raw.get(name) for name in ("temperature", "top_p")}
        own = [f"{n}={v!r}" for n, v in given.items() if v not in (None, getattr(request.chat, n))]
        if own:
            self._told.add(caller.agent)
            log.warning(
                "agent %r is trained and asks for %s, without effect: the run's own settings count, as an "
                "update trains on what was sampled (Trainer(temperature=...)); see "
                "docs/training.md, Sampling and exploration",
                caller.agent,
                ", ".join(own),
            )

    def _tell_not_offered(self, caller: Caller, request: Request) -> None:
        """Warn, once for each agent and tool, that a hosted tool is not offered to the model."""
        for kind in self._dialect.hosted_tools(request.raw):
            if (caller.agent, kind) not in self._not_offered:
                self._not_offered.add((caller.agent, kind))
                log.warning(
                    "agent %r sends the tool %r, which only its provider runs: the model is not offered it; "
                    "see docs/gateway.md, Tools",
                    caller.agent,
                    kind,
                )

    async def _answer(self, exchanges: list[Exchange], reply: ReplyWriter, send: Send) -> None:
        if failure := await self._record(exchanges):
            await self._refuse(failure, send)
        else:
            await send_json(send, reply.whole(), headers=_headers(exchanges))

    async def _stream(
        self, exchanges: list[Exchange], fresh: asyncio.Event, reply: ReplyWriter, send: Send
    ) -> None:
        started = False
        while deltas := await next_deltas(exchanges, fresh):
            events = b"" if started else reply.opening()
            events += reply.pieces(deltas)
            if not started:
                await start_events(send, _headers(exchanges))
                started = True
            if events:
                await send_events(send, events, more=True)
        failure = await self._record(exchanges)
        if failure is None:
            await send_events(send, reply.ending(), more=False)
        elif started:
            await send_events(send, reply.failing(failure), more=False)
        else:
            await self._refuse(failure, send)

    async def _record(self, exchanges: list[Exchange]) -> ApiError | None:
        """Store the calls, each once it has ended; returns why the first that failed has no reply."""
        failures = []
        for exchange in exchanges:
            await exchange.finished()
            failures.append(await self._exchanges.record(exchange))
        return next(filter(None, failures), None)

    async def _refuse(self, refusal: ApiError, send: Send) -> None:
        if refusal.code == CONTEXT_LENGTH:
            refusal.param = self._dialect.prompt
        await send_json(send, self._dialect.error(refusal), status=refusal.status)


@dataclass(frozen=True, slots=True)
class Counter:
    """Answers how many tokens a prompt of an endpoint has, as an ASGI application."""

    endpoint: Endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.endpoint.count(scope, receive, send)


def _json_object(content: bytes) -> Json | None:
    """The JSON object in a request; None if there is none, which is refused when it is read."""
    try:
        body = orjson.loads(content)
    except ValueError:
        return None
    return body if isinstance(body, dict) else None


async def _watch(exchanges: list[Exchange], receive: Receive) -> None:
    await wait_disconnect(receive)
    for exchange in exchanges:
        exchange.abort(disconnected())


def _part(caller: Caller, index: int) -> Caller:
    """The caller of one prompt of several: each is a call, the same when the request is sent again."""
    return replace(caller, call_id=f"{caller.call_id[:_LONGEST]}-{index}")


def _headers(exchanges: list[Exchange]) -> list[tuple[bytes, bytes]]:
    """The headers of a reply, by the first call, and the first whose version is known."""
    versions = [exchange.recording.sampled.policy_version for exchange in exchanges]
    known = next((version for version in versions if version is not None), None)
    return [
        (b"x-request-id", exchanges[0].recording.caller.call_id.encode("ascii", "replace")),
        (b"x-lightning-policy-version", str(known).encode()),
    ]
