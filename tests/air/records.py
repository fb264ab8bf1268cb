"""Records of a rollout, written by hand."""

from __future__ import annotations

import json
from typing import Any

from lightning_core.air.base import Records, Signal
from lightning_core.air.reading import read_records
from lightning_core.records.types import Call, Choice, Event, Rollout, Span, Status, Task, ToolEvent

ROLLOUT = Rollout(
    id="r",
    run_id="run",
    task=Task(input={"q": "?"}),
    group_id="g",
    step=0,
    status=Status.SUCCEEDED,
    attempts=1,
    reward=1.0,
)
SCHEMA = {
    "type": "object",
    "properties": {"word": {"type": "string"}, "page": {"type": "integer"}},
    "required": ["word"],
}
TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": SCHEMA}}]


def asks(tool_call_id: str | None = "t1", name: str = "look_up", arguments: object = None) -> dict[str, Any]:
    """A request for a tool, as replies have it."""
    given = {"word": "boat"} if arguments is None else arguments
    function = {"name": name, "arguments": given if isinstance(given, str) else json.dumps(given)}
    return {"id": tool_call_id, "type": "function", "function": function}


def call(
    number: int, *tool_calls: dict[str, Any], text: str = "", prompt: object = "Go.", **changes: Any
) -> Call:
    """Call number so and so, which began when the one before had ended."""
    message: dict[str, Any] = {"role": "assistant", "content": text or None}
    if tool_calls:
        message["tool_calls"] = list(tool_calls)
    messages = prompt if isinstance(prompt, list) else [{"role": "user", "content": prompt}]
    fields = {
        "id": f"c{number}",
        "rollout_id": "r",
        "attempt": 1,
        "agent": "writer",
        "trained": True,
        "request": {"messages": messages, "tools": TOOLS},
        "choices": [Choice(completion_ids=[5], logprobs=[-0.5], message=message, finish_reason="stop")],
        "prompt_ids": [1, number],
        "policy_version": 0,
        "started_at": float(number),
        "ended_at": number + 0.5,
    }
    return Call(**{**fields, **changes})


def told(tool_call_id: str, content: object) -> list[dict[str, Any]]:
    """The messages of a request that tells the model what came of a tool."""
    asked = {"role": "assistant", "content": None, "tool_calls": [asks(tool_call_id)]}
    return [
        {"role": "user", "content": "Go."},
        asked,
        {"role": "tool", "tool_call_id": tool_call_id, "content": content},
    ]


def run(tool_call_id: str | None = "t1", **fields: Any) -> ToolEvent:
    """A run of a tool, as a plugin reports it."""
    given = {
        "id": "e",
        "rollout_id": "r",
        "attempt": 1,
        "agent": "writer",
        "name": "look_up",
        "result": "found",
        "started_at": 1.0,
        "ended_at": 1.1,
    }
    return ToolEvent(tool_call_id=tool_call_id, **{**given, **fields})


def span(error: str | None = None, **attributes: Any) -> Span:
    """A span; its attributes with `__` for the dots."""
    given = {name.replace("__", "."): value for name, value in attributes.items()}
    return Span(
        id="s",
        trace_id="t",
        rollout_id="r",
        attempt=1,
        name="span",
        attributes=given,
        error=error,
        started_at=1.0,
        ended_at=1.1,
    )


def recorded(*items: Call | Event) -> Records:
    """The records of the rollout in which all this happened."""
    calls = [item for item in items if isinstance(item, Call)]
    return read_records(ROLLOUT, calls, [item for item in items if not isinstance(item, Call)])


def where(signals: Any) -> list[tuple[str, str | None]]:
    """Returns the subjects of signals: (call, request)."""
    return [(signal.call_id, signal.tool_call_id) for signal in signals if isinstance(signal, Signal)]
