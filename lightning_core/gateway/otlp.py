"""`POST /v1/traces`: spans of an instrumented app, by OTLP over HTTP, stored with its rollout.

Who may send, and for which rollout, is decided as for calls. A batch is stored whole before it is
acknowledged, or not at all; only spans whose ids are not valid are left out, counted and named in the
reply, as the protocol has it. Answers come in the encoding of the request.

    OTEL_EXPORTER_OTLP_ENDPOINT={gateway}/rollouts/{rollout_id}
    OTEL_EXPORTER_OTLP_HEADERS=Authorization=Bearer%20{token}
"""

from __future__ import annotations

import asyncio
import logging
from types import MappingProxyType, ModuleType
from typing import Any, Final

from starlette.types import Receive, Scope, Send

from lightning_core.errors import AccessError, ApiError, GatewayError
from lightning_core.gateway.access import Access, Caller
from lightning_core.gateway.errors import api_error_of
from lightning_core.gateway.wire import read_body, send_json
from lightning_core.stores.base import Store

log = logging.getLogger(__name__)

PROTOBUF: Final = "application/x-protobuf"
JSON: Final = "application/json"
_INTERNAL: Final = 13
_STATUS_CODES: Final = MappingProxyType({400: 3, 401: 16, 403: 7, 413: 8, 415: 3, 501: 12, 503: 14})
"""HTTP's status as the code of `google.rpc.Status`."""


class Traces:
    """The endpoint, as an ASGI application."""

    def __init__(self, access: Access, store: Store) -> None:
        self._access = access
        self._store = store

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        form = headers.get("content-type", "").partition(";")[0].strip().lower()
        try:
            caller = self._admit(scope)
            wire = await asyncio.to_thread(_need_wire)
            if form not in (PROTOBUF, JSON):
                raise _unsupported_media(f"the content type {form!r}", f"{PROTOBUF} or {JSON}")
            body = await read_body(receive)
            if body is None:
                return
            rejected = await self._keep(wire, body, form, caller)
        except GatewayError as error:
            await _refuse(api_error_of(error), form, send)
        else:
            await _send(wire.accepted(rejected, form), form, 200, send)

    def _admit(self, scope: Scope) -> Caller:
        caller = self._access.admit(scope)
        if caller.rollout_id is None:
            raise AccessError(
                "spans are stored with a rollout; send them with its token as Authorization: Bearer"
            )
        return caller

    async def _keep(self, wire: ModuleType, content: bytes, form: str, caller: Caller) -> list[str]:
        """Store the batch; returns why spans were rejected, one reason for each."""
        spans, rejected = await asyncio.to_thread(wire.read_spans, content, form, caller)
        try:
            await self._store.add_events(spans)
        except Exception as error:
            log.exception("%d spans of rollout %r could not be stored", len(spans), caller.rollout_id)
            raise ApiError(
                f"the spans could not be stored: {error}",
                status=503,
                code="store_failed",
                kind="server_error",
            ) from error
        reasons: list[str] = rejected
        return reasons


def _find_wire() -> ModuleType | None:
    """Returns the reader and writer of OTLP, imported with the first batch; None if it is not installed."""
    try:
        from lightning_core.gateway import otlp_wire
    except ModuleNotFoundError:
        return None
    return otlp_wire


def _need_wire() -> ModuleType:
    wire = _find_wire()
    if wire is None:
        raise ApiError(
            "this gateway can't read spans, as OpenTelemetry's protocol is not installed; where the gateway "
            "runs: pip install 'agent-lightning-core[otel]'",
            status=501,
            code="otel_not_installed",
            kind="server_error",
        )
    return wire


def _unsupported_media(what: str, known: str) -> ApiError:
    return ApiError(f"{what} is not supported; send {known}", status=415, code="unsupported_media_type")


async def _refuse(refusal: ApiError, form: str, send: Send) -> None:
    code = _STATUS_CODES.get(refusal.status, _INTERNAL)
    message = f"{refusal.code}: {refusal}"
    wire = await asyncio.to_thread(_find_wire) if form == PROTOBUF else None
    if wire is not None:
        await _send(wire.refused(code, message), form, refusal.status, send)
    else:
        await send_json(send, {"code": code, "message": message}, status=refusal.status)


async def _send(body: bytes, form: str, status: int, send: Send) -> None:
    head: list[tuple[bytes, Any]] = [
        (b"content-type", form.encode()),
        (b"content-length", str(len(body)).encode()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})
