"""Apps that look at tracing, turn it off, or bring a provider of their own."""

from __future__ import annotations

from typing import Any

from agents import Span, Trace, TracingProcessor, set_trace_processors, set_trace_provider
from agents.tracing import get_trace_provider, set_tracing_disabled
from agents.tracing.provider import DefaultTraceProvider, TraceProvider
from lightning_openai_agents import install, uninstall


class Recorder(TracingProcessor):
    """Keeps the names of the agents whose spans ended."""

    def __init__(self) -> None:
        self.agents: list[str] = []
        self.stopped: list[float | None] = []

    def on_span_end(self, span: Span[Any]) -> None:
        if span.span_data.type == "agent":
            self.agents.append(span.span_data.name)

    def on_trace_start(self, trace: Trace) -> None: ...

    def on_trace_end(self, trace: Trace) -> None: ...

    def on_span_start(self, span: Span[Any]) -> None: ...

    def force_flush(self) -> None: ...

    def shutdown(self, timeout: float | None = None) -> None:
        self.stopped.append(timeout)


class OwnProvider(TraceProvider):
    """An app's provider around another one, as ours is: it counts spans, and offers the count."""

    def __init__(self, inner: TraceProvider) -> None:
        self.inner = inner
        self.made = 0

    def create_span(self, *args: Any, **kwargs: Any) -> Any:
        self.made += 1
        return self.inner.create_span(*args, **kwargs)

    def create_trace(self, *args: Any, **kwargs: Any) -> Any:
        return self.inner.create_trace(*args, **kwargs)

    def register_processor(self, processor: Any) -> None:
        self.inner.register_processor(processor)

    def set_processors(self, processors: Any) -> None:
        self.inner.set_processors(processors)

    def get_current_trace(self) -> Any:
        return self.inner.get_current_trace()

    def get_current_span(self) -> Any:
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


def as_it_is(recorder: Recorder) -> None:
    """Tracing is on."""


def disabled(recorder: Recorder) -> None:
    set_tracing_disabled(True)


def no_processors(recorder: Recorder) -> None:
    set_trace_processors([])


def own_before(recorder: Recorder) -> None:
    uninstall()
    set_trace_provider(OwnProvider(get_trace_provider()))
    install()


def own_after(recorder: Recorder) -> None:
    set_trace_provider(OwnProvider(_fresh(recorder)))


def own_around(recorder: Recorder) -> None:
    """The app's provider passes on to the one it finds, which is ours."""
    set_trace_provider(OwnProvider(get_trace_provider()))


def own_after_and_disabled(recorder: Recorder) -> None:
    own_after(recorder)
    set_tracing_disabled(True)


def own_after_and_installed_again(recorder: Recorder) -> None:
    own_after(recorder)
    install()


def nothing_installed(recorder: Recorder) -> None:
    uninstall()


def _fresh(recorder: Recorder) -> TraceProvider:
    provider = DefaultTraceProvider()
    provider.register_processor(recorder)
    return provider
