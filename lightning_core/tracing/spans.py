"""OpenTelemetry in the app's own process: its spans say who is calling, and are kept with the rollout.

The current span names the agent if it, or a span around it, has `gen_ai.agent.name`. So that a span knows
the spans around it, and to which rollout it belongs, a span processor (`tracing.otel`) notes on each span
what was true where it was started. While requests are tagged, every `TracerProvider` of the app gets one.

OpenTelemetry is not imported here: an app that has a span has imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType, ModuleType
from typing import Any

from lightning_core.records.linking import AGENT_NAME
from lightning_core.records.types import Who
from lightning_core.tracing.importing import WhenImported
from lightning_core.tracing.patching import patch
from lightning_core.tracing.scope import Scope

FRAMEWORK = "opentelemetry"
_START = "_lightning_start"
_COVERED = "_lightning_covered"
_LEFT_TO = MappingProxyType({"autogen-core": "lightning_autogen"})
"""Libraries that open spans inside generators, and the plugins that know better: such a span stays current
while the generator's consumer runs. Where the plugin is loaded, it alone answers for its framework."""


@dataclass(frozen=True, slots=True)
class Start:
    """The rollout and the caller where a span was started."""

    scope: Scope | None
    """The rollout that was running."""
    around: Any
    """The span that was current, if it is one of this process."""
    entered: int
    """See `Who.entered`."""


def note_start(span: Any, start: Start) -> bool:
    """Keep `start` on the span; False if another processor was first."""
    if hasattr(span, _START):
        return False
    setattr(span, _START, start)
    return True


def find_start(span: Any) -> Start | None:
    """Returns the start that `note_start` has kept on the span."""
    return getattr(span, _START, None)


def current_span_agent() -> Who | None:
    """The agent that the current span of this context stands for, if any."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None or not hasattr(trace, "get_current_span"):  # absent in the midst of its import
        return None
    for span, name in _names_around(trace.get_current_span()):
        if not _left_to_plugin(span):
            start = find_start(span)
            return Who(name, start.entered if start is not None else 0, FRAMEWORK)
    return None


def agent_around(span: Any) -> str | None:
    """The agent named by a span or by the nearest span around it."""
    return next((name for _, name in _names_around(span)), None)


def _names_around(span: Any) -> Iterator[tuple[Any, str]]:
    """The spans that name an agent, from this one outwards, with the names. One that has ended names none:
    it may still be current, as a generator that is broken off can't take it back."""
    while span is not None:
        attributes = None if getattr(span, "end_time", None) else getattr(span, "attributes", None)
        if attributes is not None and (name := attributes.get(AGENT_NAME)):
            yield span, str(name)
        start = find_start(span)
        span = start.around if start is not None else None


def _left_to_plugin(span: Any) -> bool:
    library = getattr(span, "instrumentation_scope", None)
    return _LEFT_TO.get(getattr(library, "name", "")) in sys.modules


def install(make_processor: Callable[[], Any]) -> Callable[[], None]:
    """Keep the spans of the app's tracer providers until the returned function is called. May be nested.

    Covered are the global provider and every one that is made from now on. One that was made before and
    is not the global one needs the app's own line: `provider.add_span_processor(LightningSpanProcessor())`.
    """
    user = object()
    undo: list[Callable[[], None]] = []

    def cover(sdk: ModuleType) -> None:
        undo.append(patch(sdk.TracerProvider, "__init__", user, partial(_covering, make_processor)))
        # Not get_tracer_provider(), which sets one, and for good, if the environment names it.
        provider = getattr(sys.modules["opentelemetry.trace"], "_TRACER_PROVIDER", None)
        if isinstance(provider, sdk.TracerProvider):
            _cover(provider, make_processor)

    import_hook = WhenImported("opentelemetry.sdk.trace", cover)
    import_hook.start()

    def uninstall() -> None:
        import_hook.stop()
        while undo:
            undo.pop()()

    return uninstall


def _covering(
    make_processor: Callable[[], Any], original: Callable[..., None], users: list[object]
) -> Callable[..., None]:
    def __init__(provider: Any, *args: Any, **kwargs: Any) -> None:
        original(provider, *args, **kwargs)
        if users:
            _cover(provider, make_processor)

    return __init__


def _cover(provider: Any, make_processor: Callable[[], Any]) -> None:
    """Give a provider its processor, once: it can't be taken back, and outside a rollout it does nothing."""
    if not hasattr(provider, _COVERED):
        setattr(provider, _COVERED, True)
        provider.add_span_processor(make_processor())
