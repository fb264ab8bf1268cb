"""Which call a tool run or a span belongs to: by the ids in the call's reply, never by time.

Pure functions over what a rollout recorded, so that it does not matter which arrived first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from lightning_core.types import Call, Event, Span

RESPONSE_ID = "gen_ai.response.id"
"""The attribute in which GenAI spans keep the reply's id."""


def link(calls: Iterable[Call], events: Sequence[Event]) -> list[Event]:
    """The events with `call_id` filled in where a call of the same rollout's reply bears their id.

    A tool run is found by its `tool_call_id`, a span by its `gen_ai.response.id`. Links that are there
    already stay; what matches nothing is returned as it came.
    """
    asked: dict[tuple[str | None, str], str] = {}
    answered: dict[tuple[str | None, str], str] = {}
    for call in calls:
        for choice in call.choices:
            for tool_call_id in tool_call_ids(choice.message):
                asked[call.rollout_id, tool_call_id] = call.id
        if call.response_id is not None:
            answered[call.rollout_id, call.response_id] = call.id
    return [_linked(event, asked, answered) for event in events]


def tool_call_ids(message: dict[str, Any]) -> list[str]:
    """The ids of the tools that an assistant message asks for."""
    tool_calls = message.get("tool_calls") or ()
    return [str(tool_call["id"]) for tool_call in tool_calls if tool_call.get("id")]


def _linked(
    event: Event, asked: dict[tuple[str | None, str], str], answered: dict[tuple[str | None, str], str]
) -> Event:
    if event.call_id is not None:
        return event
    if isinstance(event, Span):
        call_id = answered.get((event.rollout_id, str(event.attributes.get(RESPONSE_ID, ""))))
    else:
        call_id = asked.get((event.rollout_id, event.tool_call_id or ""))
    return event if call_id is None else event.model_copy(update={"call_id": call_id})
