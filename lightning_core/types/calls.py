"""What is recorded of a rollout: LLM calls, runs of tools, and spans."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, JsonValue

from lightning_core.types.rollouts import Record

UNNAMED = "unnamed"
"""The agent of an unnamed call: no plugin named it and no `agent(...)` block was open."""


class Choice(Record):
    """One sampled reply of a call (`n > 1` gives several)."""

    index: int = 0
    completion_ids: list[int] | None = None
    """Token ids as the engine sampled them, the stop token included; None if the engine gave none."""
    logprobs: list[float] | None = None
    """Natural log-probability of each completion id at the temperature it was sampled with."""
    finish_reason: str | None = None
    message: dict[str, JsonValue] = Field(default_factory=dict)
    """The assistant message the app was given."""


CallStatus = Literal["completed", "cancelled", "failed"]


class Call(Record):
    """One recorded LLM request and its reply."""

    id: str
    """Shared by the tries of one request. A try that completed is kept, and what completes under its id
    afterwards has an id made of both."""
    rollout_id: str | None
    attempt: int | None
    agent: str
    trained: bool
    """Whether the agent is one of those being trained."""
    dialect: str = "chat"
    model: str = ""
    request: dict[str, JsonValue] = Field(default_factory=dict)
    prompt_ids: list[int] | None = None
    choices: list[Choice] = Field(default_factory=list)
    temperature: float = 1.0
    policy_version: int | None = None
    """The version of the weights that answered."""
    status: CallStatus = "completed"
    error: str | None = None
    started_at: float
    ended_at: float
    response_id: str | None = None
    """The id of the reply, as the app was given it."""
    endpoint: str | None = None
    """Where the app sent it, when that was not the gateway: such a call was only seen, and is never
    trained on. None for a call that the gateway answered."""
    grammar: str | None = None
    """What its replies were held to, as the engine wrote it down to be replayed over `completion_ids`; None if
    the request had no constraint."""


@dataclass(frozen=True, slots=True)
class Who:
    """A plugin's answer to "who is calling right now?"."""

    agent: str
    entered: int = 0
    """When the caller's innermost scope was entered (see `tracing.scope.enter_order`): larger is inner."""
    framework: str = ""


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
