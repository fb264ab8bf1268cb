"""The span processor: every span that starts inside a rollout is stored with it when it ends.

Usually added by itself (see `tracing.spans.install`); by hand it is one line:

    provider.add_span_processor(LightningSpanProcessor())

A span belongs to the rollout in which it was *started*, wherever it ends: a stream's span ends where the
stream is read, in another thread or when it is collected. What ends after its rollout is not kept.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.trace import StatusCode, get_current_span

from lightning_core.records.linking import SERVICE_NAME, origin
from lightning_core.records.types import Span
from lightning_core.tracing.scope import Scope, current_scope, enter_order
from lightning_core.tracing.spans import Start, agent_around, find_start, note_start

_Id = tuple[int, int]
"""(trace id, span id)"""


class LightningSpanProcessor(SpanProcessor):  # type: ignore[misc]
    """Notes where each span starts, and hands it to its rollout when it ends."""

    def __init__(self) -> None:
        self._open: WeakValueDictionary[_Id, Any] = WeakValueDictionary()
        """The live spans: what is given to `on_end` is a copy without our note."""

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        """Note the rollout and the span around it. Called where the span is started."""
        parent = get_current_span(parent_context)
        around = parent if isinstance(parent, ReadableSpan) else None
        start = Start(current_scope(), around, enter_order())
        if note_start(span, start) and start.scope is not None:
            self._open[_id(span)] = span

    def on_end(self, span: Any) -> None:
        """Have the span stored with its rollout."""
        live = self._open.pop(_id(span), None)
        start = find_start(live)
        if start is not None and start.scope is not None:
            start.scope.seen.append(to_span(span, start.scope, agent_around(live)))


def to_span(span: Any, scope: Scope, agent: str | None) -> Span:
    """An ended span of the SDK as it is stored."""
    context, status = span.context, span.status
    return Span(
        id=f"{context.span_id:016x}",
        trace_id=f"{context.trace_id:032x}",
        parent_id=f"{span.parent.span_id:016x}" if span.parent is not None else None,
        rollout_id=scope.rollout_id,
        attempt=scope.attempt,
        agent=agent,
        name=span.name,
        span_kind=span.kind.name.lower(),
        attributes={**_origin(span), **_json(span.attributes or {})},
        events=[
            {"name": event.name, "time": event.timestamp / 1e9, "attributes": _json(event.attributes or {})}
            for event in span.events
        ],
        error=(status.description or "") if status.status_code is StatusCode.ERROR else None,
        started_at=span.start_time / 1e9,
        ended_at=span.end_time / 1e9,
    )


def _origin(span: Any) -> dict[str, Any]:
    service = span.resource.attributes.get(SERVICE_NAME) if span.resource is not None else None
    return origin(service, span.instrumentation_scope.name if span.instrumentation_scope else None)


def _json(value: Any) -> Any:
    """An attribute's value as JSON; bytes in base64."""
    if isinstance(value, Mapping):
        return {str(name): _json(each) for name, each in value.items()}
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_json(each) for each in value]
    return value if value is None or isinstance(value, str | bool | int | float) else repr(value)


def _id(span: Any) -> _Id:
    return span.context.trace_id, span.context.span_id
