"""What is recorded of a rollout beside its calls and rewards: tool runs and spans."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue

from lightning_core.types.record import Record

ToolErrorType = Literal["raised", "unknown_tool", "invalid_arguments", "timed_out"]


class ToolEvent(Record):
    """One run of a tool, or the refusal to run it."""

    kind: Literal["tool"] = "tool"
    id: str
    rollout_id: str
    attempt: int
    agent: str
    """Who asked for it."""
    framework: str = ""
    name: str
    arguments: str = ""
    """As the model wrote them, which need not be valid JSON."""
    result: str | None = None
    """What the model is told; None if the tool raised and nothing was told."""
    error: str | None = None
    """Why it failed; None if it did not."""
    error_type: ToolErrorType | None = None
    tool_call_id: str | None = None
    """The id that the reply gave the request for it: the link to the call that asked."""
    call_id: str | None = None
    """That call; see `linking.link`."""
    started_at: float
    ended_at: float


class Span(Record):
    """A span of OpenTelemetry that belongs to a rollout."""

    kind: Literal["span"] = "span"
    id: str
    """Span id, 16 hex digits."""
    trace_id: str
    """32 hex digits."""
    parent_id: str | None = None
    rollout_id: str
    attempt: int
    agent: str | None = None
    """`gen_ai.agent.name` of the span or of the nearest span around it."""
    call_id: str | None = None
    """The recorded call that it describes; see `linking.link`."""
    name: str
    span_kind: Literal["internal", "server", "client", "producer", "consumer"] = "internal"
    attributes: dict[str, JsonValue] = Field(default_factory=dict)
    events: list[dict[str, JsonValue]] = Field(default_factory=list)
    """Each with `name`, `time` (Unix seconds) and `attributes`."""
    error: str | None = None
    """The description of an ERROR status, "" if it had none; None if the span did not fail."""
    started_at: float
    ended_at: float


Event = Annotated[ToolEvent | Span, Field(discriminator="kind")]
"""What happened in a rollout beside its calls and rewards."""
