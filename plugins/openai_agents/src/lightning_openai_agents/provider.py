"""The trace provider that notes on every span which agent it works for. Imports the SDK.

The SDK asks its provider for a span at each agent, tool, guardrail and model call, also when tracing
is off (the spans are then empty, but entered all the same), and keeps the current one in a context
variable. So the provider sees each agent being entered, in the right context, below the list of
processors that an app may empty.
"""

from __future__ import annotations

from typing import Any

from agents.tracing import Span, Trace, TraceProvider, TracingConfig, TracingProcessor
from agents.tracing.provider import DefaultTraceProvider
from agents.tracing.spans import TSpanData

from lightning_openai_agents.naming import note

_SECONDS_AT_EXIT = 5.0
"""Seconds that the SDK gives its own provider, and no other, to send the last traces."""


class NamingProvider(TraceProvider):
    """The app's own provider, with a note on each span's data. Changes nothing that the app sees."""

    def __init__(self, inner: TraceProvider) -> None:
        self.inner = inner
        self.stopped = False
        """Whether it only passes through."""

    def create_span(
        self,
        span_data: TSpanData,
        span_id: str | None = None,
        parent: Trace | Span[Any] | None = None,
        disabled: bool = False,
    ) -> Span[TSpanData]:
        if not self.stopped:
            note(span_data, parent if isinstance(parent, Span) else None, self.inner.get_current_span())
        return self.inner.create_span(span_data, span_id, parent, disabled)

    def create_trace(
        self,
        name: str,
        trace_id: str | None = None,
        group_id: str | None = None,
        metadata: dict[str, Any] | None = None,
        disabled: bool = False,
        tracing: TracingConfig | None = None,
    ) -> Trace:
        return self.inner.create_trace(name, trace_id, group_id, metadata, disabled, tracing)

    def register_processor(self, processor: TracingProcessor) -> None:
        self.inner.register_processor(processor)

    def set_processors(self, processors: list[TracingProcessor]) -> None:
        self.inner.set_processors(processors)

    def get_current_trace(self) -> Trace | None:
        return self.inner.get_current_trace()

    def get_current_span(self) -> Span[Any] | None:
        return self.inner.get_current_span()

    def set_disabled(self, disabled: bool) -> None:
        self.inner.set_disabled(disabled)

    def time_iso(self) -> str:
        return self.inner.time_iso()

    def gen_trace_id(self) -> str:
        return self.inner.gen_trace_id()

    def gen_span_id(self) -> str:
        return self.inner.gen_span_id()

    def gen_group_id(self) -> str:
        return self.inner.gen_group_id()

    def force_flush(self) -> None:
        self.inner.force_flush()

    def shutdown(self, timeout: float | None = _SECONDS_AT_EXIT) -> None:
        if isinstance(self.inner, DefaultTraceProvider):
            self.inner.shutdown(timeout=timeout)
        else:
            self.inner.shutdown()

    def __getattr__(self, name: str) -> Any:
        """Whatever else the app's own provider offers."""
        return getattr(self.inner, name)
