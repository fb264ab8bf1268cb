"""OTLP's messages, read into spans as they are stored. Imported with the first batch: needs the extra `otel`.

The two encodings are one message: JSON is the protobuf's own JSON form, except that ids are in hex.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, Literal

from google.protobuf.json_format import MessageToJson, ParseDict, ParseError
from google.protobuf.message import DecodeError
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from lightning_core.errors import ApiError
from lightning_core.gateway.access import Caller
from lightning_core.gateway.otlp_counting import check_counts, check_json, check_protobuf
from lightning_core.records.linking import AGENT_NAME, SERVICE_NAME, origin
from lightning_core.records.types import UNNAMED, Span
from lightning_core.texts.json_text import read_json

_Kind = Literal["internal", "server", "client", "producer", "consumer"]
_KINDS: Final[Mapping[int, _Kind]] = MappingProxyType(
    {2: "server", 3: "client", 4: "producer", 5: "consumer"}
)
"""Kinds by number; all else is internal."""
_ERROR: Final = 2
_ID_FIELDS: Final = ("traceId", "spanId", "parentSpanId", "trace_id", "span_id", "parent_span_id")
_NO_ID: Final = b"\0"
"""Stands for what is not hex: no id has this length."""


def read_spans(content: bytes, form: str, caller: Caller) -> tuple[list[Span], list[str]]:
    """The spans of a batch as the caller's, and for each that can't be stored the reason.

    Raises ApiError if the batch as a whole is not OTLP, or of too many spans.
    """
    request = _read_json(content) if form.endswith("json") else _read_protobuf(content)
    spans, rejected = [], []
    for span, source in _all_spans(request):
        if problem := _problem(span):
            rejected.append(f"span {span.name!r}: {problem}")
        else:
            spans.append(_to_span(span, source, caller))
    return spans, rejected


def accepted(rejected: list[str], form: str) -> bytes:
    """The reply to a batch that was stored, but for the `rejected`."""
    reply = ExportTraceServiceResponse()
    if rejected:
        reply.partial_success.rejected_spans = len(rejected)
        reply.partial_success.error_message = "; ".join(rejected[:3])
    return _write(reply, form)


def refused(code: int, message: str) -> bytes:
    """The reply to a batch of which nothing was stored, in protobuf."""
    return _write(Status(code=code, message=message), "")


def _write(reply: Any, form: str) -> bytes:
    if form.endswith("json"):
        return str(MessageToJson(reply, indent=None)).encode()
    body: bytes = reply.SerializeToString()
    return body


def _read_protobuf(content: bytes) -> Any:
    try:
        check_protobuf(content)
        return ExportTraceServiceRequest.FromString(content)
    except DecodeError as error:
        raise _malformed(error) from error


def _read_json(content: bytes) -> Any:
    check_json(content)
    try:
        batch = read_json(content)
        if not isinstance(batch, dict):
            raise ParseError("the batch must be an object")
        _prepare(batch)
        return ParseDict(batch, ExportTraceServiceRequest(), ignore_unknown_fields=True)
    except (ValueError, ParseError, RecursionError) as error:
        raise _malformed(error) from error


def _malformed(error: Exception) -> ApiError:
    return ApiError(f"the body is no ExportTraceServiceRequest: {error}", code="malformed_body")


def _prepare(batch: dict[str, Any]) -> None:
    """Count what is in a batch, and rewrite the ids: protobuf's JSON expects base64, OTLP's has hex."""
    resources = _under([batch], "resourceSpans", "resource_spans")
    scopes = _under(resources, "scopeSpans", "scope_spans")
    spans = _under(scopes, "spans")
    events, links = _under(spans, "events"), _under(spans, "links")
    attributes = _under((*resources, *scopes, *spans, *events, *links), "attributes")
    check_counts(resources=len(resources), scopes=len(scopes), spans=len(spans), events=len(events))
    check_counts(links=len(links), attributes=len(attributes))
    for found in (*spans, *links):
        if isinstance(found, dict):
            given = {name: found[name] for name in _ID_FIELDS if found.get(name) is not None}
            found.update({name: b64encode(_from_hex(value)).decode() for name, value in given.items()})


def _under(found: Iterable[Any], *names: str) -> list[Any]:
    """Returns the items in the lists of that name."""
    parents = [each for each in found if isinstance(each, dict)]
    lists = (parent[name] for parent in parents for name in names if isinstance(parent.get(name), list))
    return [each for one in lists for each in one]


def _from_hex(value: Any) -> bytes:
    try:
        return bytes.fromhex(value)
    except (TypeError, ValueError):
        return _NO_ID


def _all_spans(request: Any) -> list[tuple[Any, dict[str, Any]]]:
    """Each with what is kept of its resource and scope."""
    return [
        (span, _origin(of_resource.resource, of_scope.scope))
        for of_resource in request.resource_spans
        for of_scope in of_resource.scope_spans
        for span in of_scope.spans
    ]


def _origin(resource: Any, scope: Any) -> dict[str, Any]:
    services = (_value(pair.value) for pair in resource.attributes if pair.key == SERVICE_NAME)
    return origin(next(services, None), scope.name)


def _problem(span: Any) -> str | None:
    if len(span.trace_id) != 16 or not any(span.trace_id):
        return f"trace id {span.trace_id.hex()!r} is not 16 bytes, or all zero"
    if len(span.span_id) != 8 or not any(span.span_id):
        return f"span id {span.span_id.hex()!r} is not 8 bytes, or all zero"
    if len(span.parent_span_id) not in (0, 8):
        return f"parent span id {span.parent_span_id.hex()!r} is not 8 bytes"
    return None


def _to_span(span: Any, source: dict[str, Any], caller: Caller) -> Span:
    attributes = {**source, **_attributes(span.attributes)}
    parent = span.parent_span_id.hex() if any(span.parent_span_id) else None
    # A program's own name, if its address has one, is that of the whole: spans within inherit it.
    whole = caller.agent if parent is None and caller.agent != UNNAMED else None
    return Span(
        id=span.span_id.hex(),
        trace_id=span.trace_id.hex(),
        parent_id=parent,
        rollout_id=str(caller.rollout_id),
        attempt=caller.attempt or 1,
        agent=str(attributes[AGENT_NAME]) if attributes.get(AGENT_NAME) else whole,
        name=span.name,
        span_kind=_KINDS.get(span.kind, "internal"),
        attributes=attributes,
        events=[
            {
                "name": event.name,
                "time": event.time_unix_nano / 1e9,
                "attributes": _attributes(event.attributes),
            }
            for event in span.events
        ],
        error=span.status.message if span.status.code == _ERROR else None,
        started_at=span.start_time_unix_nano / 1e9,
        ended_at=span.end_time_unix_nano / 1e9,
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    match value.WhichOneof("value"):
        case None:
            return None
        case "array_value":
            return [_value(each) for each in value.array_value.values]
        case "kvlist_value":
            return _attributes(value.kvlist_value.values)
        case "bytes_value":
            return b64encode(value.bytes_value).decode()
        case plain:
            return getattr(value, plain)
