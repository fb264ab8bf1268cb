"""The size of a batch of OTLP, counted in its bytes: two bytes may unpack to an object of hundreds.

Counting stops at the first number that is too large, so that a batch takes no more than its bytes until it is
known to be reasonable.
"""

from __future__ import annotations

import re
from collections import Counter
from types import MappingProxyType
from typing import Any, Final

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from lightning_core.gateway.errors import too_large

MOST: Final = MappingProxyType(
    {
        "resources": 10_000,
        "scopes": 10_000,
        "spans": 10_000,
        "events": 100_000,
        "links": 100_000,
        "attributes": 200_000,
        "values": 500_000,
    }
)
"""In one batch. Exporters send 512 spans, of at most 128 attributes, events and links each."""
MAX_FIELDS: Final = 1_000_000
"""In one batch: of protobuf the fields, of JSON the values."""
_NAMES: Final = MappingProxyType(
    {
        "ResourceSpans": "resources",
        "ScopeSpans": "scopes",
        "Span": "spans",
        "Event": "events",
        "Link": "links",
        "KeyValue": "attributes",
        "AnyValue": "values",
    }
)
"""How messages are called in a refusal."""
_STEP: Final = re.compile(rb'(?:[^{\[,"]++|"(?:[^"\\]++|\\.)*+"?)*+[{\[,]', re.DOTALL)
"""In JSON, up to where the next value begins; marks within texts are none."""
_BYTES: Final = MappingProxyType({1: 8, 5: 4, 3: 0, 4: 0})
"""How long a field is, by the wire's types of fixed length; groups have marks at both ends."""
_LENGTH_GIVEN: Final = 2


def check_counts(**counts: int) -> None:
    """Raise ApiError for more of something than a batch may have."""
    for name, number in counts.items():
        if number > MOST[name]:
            raise too_large(f"more than {MOST[name]} {name}")


def check_json(content: bytes) -> None:
    """Raise ApiError if JSON has too many values."""
    for number, _ in enumerate(_STEP.finditer(content), start=2):
        if number > MAX_FIELDS:
            raise too_large(f"more than {MAX_FIELDS} values")


def check_protobuf(content: bytes) -> None:
    """Raise ApiError if a batch has too much of something, DecodeError if it is no protobuf."""
    counts: Counter[str] = Counter()
    fields = 0
    stack: list[tuple[int, int, Any]] = [(0, len(content), ExportTraceServiceRequest.DESCRIPTOR)]
    while stack:
        at, end, message = stack.pop()
        known = _KNOWN[message.full_name]
        while at < end:
            fields += 1
            if fields > MAX_FIELDS:
                raise too_large(f"more than {MAX_FIELDS} fields")
            tag, at = _number(content, at)
            kind, size = known.get(tag >> 3), _BYTES.get(tag & 7, 0)
            if tag & 7 in (0, _LENGTH_GIVEN):
                number, at = _number(content, at)
                size = number if tag & 7 == _LENGTH_GIVEN else 0
            if at + size > end:
                raise DecodeError("a field goes beyond the end of its message")
            if kind is not None and tag & 7 == _LENGTH_GIVEN:
                name = _NAMES.get(kind.name)
                if name is not None:
                    counts[name] += 1
                    check_counts(**{name: counts[name]})
                stack.append((at, at + size, kind))
            at += size


def _number(content: bytes, at: int) -> tuple[int, int]:
    """A number of variable length, and where it ends."""
    value = shift = 0
    while True:
        if at >= len(content) or shift > 63:
            raise DecodeError("a number breaks off")
        byte = content[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _read_messages(message: Any, found: dict[str, dict[int, Any]]) -> dict[str, dict[int, Any]]:
    if message.full_name not in found:
        inner = {field.number: field.message_type for field in message.fields if field.message_type}
        found[message.full_name] = inner
        for each in inner.values():
            _read_messages(each, found)
    return found


_KNOWN: Final = MappingProxyType(_read_messages(ExportTraceServiceRequest.DESCRIPTOR, {}))
"""The messages in each message, by name, then by number."""
