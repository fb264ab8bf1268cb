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
import zlib
from types import MappingProxyType, ModuleType
from typing import Any, Final

from starlette.types import Receive, Scope, Send

from lightning_core.errors import AccessError, ApiError, GatewayError
from lightning_core.gateway.access import Access, Caller
from lightning_core.gateway.errors import api_error_of, too_large
from lightning_core.gateway.wire import read_body, send_json
from lightning_core.stores.base import Store

log = logging.getLogger(__name__)

MAX_BYTES: Final = 20 * 2**20
"""Of one batch, before and after decompression: the default limit of OpenTelemetry's own collector."""
PROTOBUF: Final = "application/x-protobuf"
JSON: Final = "application/json"
_WINDOWS: Final = MappingProxyType({"gzip": 31, "deflate": 15})
"""zlib's name for each encoding."""
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
            encoding = _encoding(headers)
            body = await read_body(receive)
            if body is None:
                return
            _check_size(len(body))
            content = await asyncio.to_thread(_decompress, body, encoding)
            rejected = await self._keep(wire, content, form, caller)
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
    """What reads and writes OTLP, imported with the first batch; None if it is not installed."""
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


def _encoding(headers: dict[str, str]) -> str:
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity" and encoding not in _WINDOWS:
        raise _unsupported_media(f"the content encoding {encoding!r}", "gzip, deflate or none")
    return encoding


def _decompress(body: bytes, encoding: str) -> bytes:
    """What was compressed. Raises ApiError for what is too large or broken."""
    if encoding == "identity":
        return body
    stream = zlib.decompressobj(_WINDOWS[encoding])
    try:
        content = stream.decompress(body, MAX_BYTES + 1)
    except zlib.error as error:
        raise ApiError(f"the body is not {encoding}: {error}", code="malformed_body") from error
    _check_size(len(content))
    if not stream.eof:
        raise ApiError(f"the {encoding} body breaks off", code="malformed_body")
    if stream.unused_data:
        raise ApiError(
            f"{len(stream.unused_data)} bytes follow the end of the {encoding} stream; send one stream",
            code="malformed_body",
        )
    return content


def _check_size(size: int) -> None:
    if size > MAX_BYTES:
        raise too_large(f"more than {MAX_BYTES} bytes")


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
