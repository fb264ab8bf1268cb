"""A collector to which traces are sent, and what it answered.

The exporter only logs why it failed. The session that it is given here remembers, so that a person is told.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import requests
from google.protobuf.message import DecodeError
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.trace import ReadableSpan

from lightning_core.errors import ConfigError, ExportError

_TRACES = "/v1/traces"
_BATCH = 256
"""Spans in one request."""


class Collector:
    """An OTLP/HTTP collector, by its base URL such as `http://localhost:4318`.

    Headers, time-out and compression are those of OpenTelemetry's own environment variables. Raises
    ConfigError for what is no HTTP URL.
    """

    def __init__(self, url: str) -> None:
        if not _is_address(url):
            raise ConfigError(
                f"{url.rpartition('@')[2].partition('?')[0]!r} is not the URL of a collector; "
                "give one such as http://localhost:4318"
            )
        self.url = url if urlsplit(url).path.endswith(_TRACES) else url.rstrip("/") + _TRACES
        self.shown = _shown(self.url)
        """The URL as it may be printed: without user, password and query."""
        self._session = _Session()
        self._exporter = OTLPSpanExporter(self.url, session=self._session)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exporter.shutdown()

    def send(self, spans: Sequence[ReadableSpan]) -> None:
        """Return once the collector has taken all spans; ExportError says why it has not."""
        for start in range(0, len(spans), _BATCH):
            self._session.forget()
            self._exporter.export(spans[start : start + _BATCH])
            if problem := self._session.problem():
                raise ExportError(f"the collector at {self.shown} {problem}")


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, or half a bracket
        return False


def _shown(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


class _Session(requests.Session):  # type: ignore[misc]
    """Remembers how the last request ended."""

    def forget(self) -> None:
        self._answer: Any = None
        self._error: requests.RequestException | None = None

    def request(self, *args: Any, **kwargs: Any) -> Any:
        self.forget()
        try:
            self._answer = super().request(*args, **kwargs)
        except requests.RequestException as error:
            self._error = error
            raise
        return self._answer

    def problem(self) -> str | None:
        """What went wrong; None if the collector took everything."""
        if self._error is not None:
            reason = getattr(self._error.args[0], "reason", None) if self._error.args else None
            return f"can't be reached: {reason or self._error}; start it, or give its port for OTLP over HTTP"
        if self._answer is None:
            return "was sent nothing: the spans can't be encoded, or are too large for one request"
        if self._answer.status_code // 100 != 2:
            said = self._answer.content[:500].decode("utf-8", "replace")
            return f"refused the spans: {self._answer.status_code} {self._answer.reason} {said}"
        return _rejection(self._answer.content)


def _rejection(content: bytes) -> str | None:
    """What a reply of 200 says was left out."""
    try:
        left_out = ExportTraceServiceResponse.FromString(content).partial_success
    except DecodeError:  # not every collector answers in protobuf
        return None
    if not left_out.rejected_spans:
        return None
    return f"rejected {left_out.rejected_spans} spans: {left_out.error_message}"
