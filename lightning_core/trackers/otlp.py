"""Rollouts as OpenTelemetry's spans, and the way to a collector.

A rollout becomes one trace: a span for the rollout, one for each call and each tool run, with the attributes
of the GenAI conventions; rewards are `gen_ai.evaluation.result` events on what they are about. Trace and span
ids follow from the ids in the store, so that sending twice sends the same spans. Spans that came from the app
go out with their own ids and under their own service's name, and are linked from the spans of what they
describe; what else their resource said, links and trace state are not stored and do not go out. What the
conventions have no word for is under `lightning.`; an attribute that is not known is left out.

Needs the extra `otel`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import requests
from google.protobuf.message import DecodeError
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from lightning_core import __version__
from lightning_core.dialects import get_dialect, transcript
from lightning_core.errors import ConfigError, ExportError
from lightning_core.insight.trace import Node, Trace
from lightning_core.records.linking import AGENT_NAME, RESPONSE_ID, SCOPE_NAME, SERVICE_NAME, TOOL_CALL_ID
from lightning_core.records.types import Call, Reward, Rollout, Span, ToolEvent

UNKNOWN_SERVICE = "unknown_service"
"""OpenTelemetry's name for a program without a name."""
_RESOURCE = {SERVICE_NAME: "agentlightning", "service.version": __version__}
_TRACES = "/v1/traces"
_BATCH = 256
"""Spans in one request."""
_INT64 = 2**63
Attributes = dict[str, Any]


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
        """The nearest span of ours at or above a node, by node."""
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
        attributes = reward_attributes(reward)
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
            rollout_attributes(rollout),
            rollout.error,
            (started, ended),
        )
        return [root, *(self._item_span(*each) for each in self._items)]

    def _item_span(self, item: Call | ToolEvent, context: SpanContext, parent: SpanContext) -> ReadableSpan:
        times = item.started_at, item.ended_at
        if isinstance(item, ToolEvent):
            attributes = tool_attributes(item)
            return self._span(f"execute_tool {item.name}", context, parent, attributes, item.error, times)
        attributes = call_attributes(item)
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


# the attributes of records ------------------------------------------------------------------------------
def rollout_attributes(rollout: Rollout) -> Attributes:
    return _known(
        {
            "lightning.run.id": rollout.run_id,
            "lightning.rollout.id": rollout.id,
            "lightning.rollout.status": str(rollout.status),
            "lightning.rollout.attempt": rollout.attempts,
            "lightning.rollout.reward": rollout.reward,
            "lightning.group.id": rollout.group_id,
            "lightning.step": rollout.step,
            "lightning.split": rollout.split,
            "lightning.task.id": rollout.task.id,
            "lightning.task.input": json.dumps(rollout.task.input),
        }
    )


def call_attributes(call: Call) -> Attributes:
    here = call.endpoint is None
    return _known(
        {
            "gen_ai.operation.name": get_dialect(call.dialect).operation,
            "gen_ai.provider.name": "lightning" if here else None,
            "server.address": None if here else urlsplit(str(call.endpoint)).hostname,
            "gen_ai.request.model": call.model or None,
            "gen_ai.request.temperature": call.temperature if here else None,
            RESPONSE_ID: call.response_id,
            "gen_ai.response.finish_reasons": [choice.finish_reason or "" for choice in call.choices] or None,
            "gen_ai.usage.input_tokens": transcript.tokens_read(call),
            "gen_ai.usage.output_tokens": transcript.tokens_written(call),
            "gen_ai.input.messages": json.dumps(transcript.prompt(call)),
            "gen_ai.output.messages": json.dumps(transcript.replies(call)),
            AGENT_NAME: call.agent,
            "error.type": None if call.status == "completed" else call.status,
            "lightning.call.id": call.id,
            "lightning.call.trained": call.trained,
            "lightning.policy": call.policy,
            "lightning.policy_version": call.policy_version,
            "lightning.endpoint": call.endpoint,
        }
    )


def tool_attributes(event: ToolEvent) -> Attributes:
    return _known(
        {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": event.name,
            TOOL_CALL_ID: event.tool_call_id,
            "gen_ai.tool.call.arguments": event.arguments,
            "gen_ai.tool.call.result": event.result,
            AGENT_NAME: event.agent,
            "error.type": event.error_type,
            "lightning.framework": event.framework or None,
        }
    )


def reward_attributes(reward: Reward) -> Attributes:
    return _known(
        {
            "gen_ai.evaluation.name": f"{reward.kind} reward",
            "gen_ai.evaluation.score.value": reward.value,
            "gen_ai.evaluation.explanation": reward.reason,
            AGENT_NAME: reward.agent,
            "lightning.reward.kind": reward.kind,
            "lightning.reward.source": reward.source,
        }
    )


def plain(value: Any) -> Any:
    """A value that protobuf takes: whole characters, and integers of 64 bits."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, int) and not -_INT64 <= value < _INT64:
        return str(value)
    if isinstance(value, Mapping):
        return {plain(name): plain(each) for name, each in value.items()}
    if isinstance(value, Sequence):
        return [plain(each) for each in value]
    return value


def _known(attributes: Attributes) -> Attributes:
    return {name: plain(value) for name, value in attributes.items() if value is not None}


# the collector ----------------------------------------------------------------------------------------
class OtlpCollector:
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
    """Remembers how the last request ended: the exporter only logs it, and a person is to be told."""

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
        """The error; None if the collector took everything."""
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
    """Returns the message about spans that the collector left out; None if it took all."""
    try:
        left_out = ExportTraceServiceResponse.FromString(content).partial_success
    except DecodeError:  # not every collector answers in protobuf
        return None
    if not left_out.rejected_spans:
        return None
    return f"rejected {left_out.rejected_spans} spans: {left_out.error_message}"
