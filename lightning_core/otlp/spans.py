"""A rollout's trace in OpenTelemetry's spans.

A rollout becomes one trace: a span for the rollout, one for each call and each tool run, with the attributes
of the GenAI conventions; rewards are `gen_ai.evaluation.result` events on what they are about. Trace and span
ids follow from the ids in the store, so that sending twice sends the same spans. Spans that came from the app
go out with their own ids and under their own service's name, and are linked from the spans of what they
describe; what else their resource said, links and trace state are not stored and do not go out.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from lightning_core import __version__
from lightning_core.otlp import attributes as words
from lightning_core.otlp.attributes import SCOPE_NAME, SERVICE_NAME, plain
from lightning_core.trace import Node, Trace
from lightning_core.types import Call, Reward, Rollout, Span, ToolEvent

UNKNOWN_SERVICE = "unknown_service"
"""What OpenTelemetry calls a program that has not said its name."""
_RESOURCE = {SERVICE_NAME: "agentlightning", "service.version": __version__}


def to_spans(trace: Trace) -> list[ReadableSpan]:
    """The spans of one rollout, its own first, then those that came from the app."""
    own = _Own(trace.rollout)
    foreign: list[ReadableSpan] = []
    for node, parent in trace.walk():
        match node.item:
            case Reward() as reward:
                own.note_reward(reward, parent)
            case Span() as span:
                own.note_span(span, node, parent)
                foreign.append(_foreign(span))
            case item:
                own.add(item, node, parent)
    return [*own.spans(), *foreign]


class _Own:
    """The spans that this package makes of a rollout's records, while they are gathered."""

    def __init__(self, rollout: Rollout) -> None:
        self._rollout = rollout
        self._place = (rollout.run_id, rollout.id, str(rollout.attempts))
        self._trace_id = _number(16, *self._place)
        self._root = self._context("rollout", rollout.id)
        self._within: dict[int, SpanContext] = {}
        """By node: the nearest span of ours at or above it."""
        self._items: list[tuple[Call | ToolEvent, SpanContext, SpanContext]] = []
        self._links: dict[int, list[Link]] = {}
        self._events: dict[int, list[Event]] = {}

    def add(self, item: Call | ToolEvent, node: Node, parent: Node | None) -> None:
        context = self._context("call" if isinstance(item, Call) else "tool", item.id)
        self._items.append((item, context, self._nearest(parent)))
        self._within[id(node)] = context

    def note_span(self, span: Span, node: Node, parent: Node | None) -> None:
        nearest = self._within[id(node)] = self._nearest(parent)
        if parent is None or not isinstance(parent.item, Span):
            self._links.setdefault(nearest.span_id, []).append(Link(_context_of(span, span.id)))

    def note_reward(self, reward: Reward, parent: Node | None) -> None:
        attributes = words.reward_attributes(reward)
        event = Event("gen_ai.evaluation.result", attributes, timestamp=_nanoseconds(reward.created_at))
        self._events.setdefault(self._nearest(parent).span_id, []).append(event)

    def spans(self) -> list[ReadableSpan]:
        rollout, items = self._rollout, [item for item, _, _ in self._items]
        started = min((item.started_at for item in items), default=rollout.created_at)
        ended = max([started, rollout.finished_at or started, *(item.ended_at for item in items)])
        root = self._span(
            f"rollout {rollout.id}",
            self._root,
            None,
            words.rollout_attributes(rollout),
            rollout.error,
            (started, ended),
        )
        return [root, *(self._item_span(*each) for each in self._items)]

    def _item_span(self, item: Call | ToolEvent, context: SpanContext, parent: SpanContext) -> ReadableSpan:
        times = item.started_at, item.ended_at
        if isinstance(item, ToolEvent):
            attributes = words.tool_attributes(item)
            return self._span(f"execute_tool {item.name}", context, parent, attributes, item.error, times)
        attributes = words.call_attributes(item)
        name = f"{attributes['gen_ai.operation.name']} {item.model}".strip()
        error = None if item.status == "completed" else item.error or item.status
        return self._span(name, context, parent, attributes, error, times, SpanKind.CLIENT)

    def _span(
        self,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        attributes: dict[str, Any],
        error: str | None,
        times: tuple[float, float],
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> ReadableSpan:
        return ReadableSpan(
            name=plain(name),
            context=context,
            parent=parent,
            kind=kind,
            attributes=attributes,
            events=self._events.get(context.span_id, ()),
            links=self._links.get(context.span_id, ()),
            status=_status(error),
            start_time=_nanoseconds(times[0]),
            end_time=_nanoseconds(times[1]),
            resource=Resource(_RESOURCE),
            instrumentation_scope=InstrumentationScope("lightning_core", __version__),
        )

    def _nearest(self, parent: Node | None) -> SpanContext:
        return self._root if parent is None else self._within[id(parent)]

    def _context(self, kind: str, record_id: str) -> SpanContext:
        return _context(self._trace_id, _number(8, *self._place, kind, record_id))


def _foreign(span: Span) -> ReadableSpan:
    attributes = plain(span.attributes)
    service = str(attributes.pop(SERVICE_NAME, UNKNOWN_SERVICE))
    scope = str(attributes.pop(SCOPE_NAME, ""))
    return ReadableSpan(
        name=plain(span.name),
        context=_context_of(span, span.id),
        parent=_context_of(span, span.parent_id) if span.parent_id else None,
        kind=SpanKind[span.span_kind.upper()],
        attributes=attributes,
        events=[_foreign_event(event) for event in span.events],
        status=_status(span.error),
        start_time=_nanoseconds(span.started_at),
        end_time=_nanoseconds(span.ended_at),
        resource=Resource({SERVICE_NAME: service}),
        instrumentation_scope=InstrumentationScope(scope),
    )


def _foreign_event(event: dict[str, Any]) -> Event:
    return Event(plain(event["name"]), plain(event["attributes"]), timestamp=_nanoseconds(event["time"]))


def _context_of(span: Span, span_id: str) -> SpanContext:
    return _context(int(span.trace_id, 16), int(span_id, 16))


def _context(trace_id: int, span_id: int) -> SpanContext:
    return SpanContext(trace_id, span_id, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def _number(size: int, *words: str) -> int:
    """An id of `size` bytes that follows from the words, and is not zero."""
    return int.from_bytes(blake2b("\0".join(words).encode(), digest_size=size).digest(), "big") or 1


def _status(error: str | None) -> Status:
    return Status(StatusCode.UNSET) if error is None else Status(StatusCode.ERROR, plain(error))


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
