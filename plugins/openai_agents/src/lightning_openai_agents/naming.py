"""Which agent a span works for: the innermost agent span around it, noted when the span is made.

A note is made once, from the span around: an agent's span enters a scope of its own, any other (a
tool, a guardrail, a turn, a model call) inherits. So a request reads one attribute, no chain of spans
is kept alive, and what runs beside it can't be mistaken for it.

A span without a note was made before `install()`, or by a provider that the app set later. Then the
spans that were current before it are climbed, and an agent found so is taken as entered at that
moment, its first request. That is late only for a block opened inside the agent earlier than that.
"""

from __future__ import annotations

from typing import Any

from lightning_core.records.types import Who
from lightning_core.tracing.routing import innermost
from lightning_core.tracing.scope import enter_order

FRAMEWORK = "openai_agents"
_NOTE = "_lightning_who"
_AGENT = "agent"


def note(span_data: Any, *around: Any) -> None:
    """Write down who a new span works for, given the spans around it (None where there is none)."""
    if span_data.type == _AGENT:
        _enter(span_data)
    else:
        vars(span_data).setdefault(_NOTE, innermost([find_who(span) for span in around]))


def find_who(span: Any) -> Who | None:
    """The innermost agent that this span works for; None if no agent is around it."""
    while span is not None:
        noted: dict[str, Who | None] = vars(span.span_data)
        if _NOTE in noted:
            return noted[_NOTE]
        if span.span_data.type == _AGENT:
            return _enter(span.span_data)
        span = _before(span)
    return None


def _enter(span_data: Any) -> Who | None:
    noted: dict[str, Who | None] = vars(span_data)
    return noted.setdefault(_NOTE, Who(span_data.name, enter_order(), FRAMEWORK))


def _before(span: Any) -> Any:
    """The span that was current when this one became it (the SDK keeps it to go back to it)."""
    token = getattr(span, "_prev_span_token", None)
    span_before = token.old_value if token is not None else None
    return span_before if hasattr(span_before, "span_data") else None  # Token.MISSING has none
