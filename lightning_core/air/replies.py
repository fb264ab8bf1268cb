"""Rules about replies as such: the same thing asked again, and a reply that was cut."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterator
from typing import Any

from lightning_core import transcript
from lightning_core.air.base import Records, Signal, ToolRequest
from lightning_core.types import Call


def cut_by_length(records: Records) -> Iterator[Signal]:
    """The reply was cut because it reached its greatest length."""
    for call in records.calls:
        if any(choice.finish_reason == "length" for choice in call.choices):
            yield Signal(call.id, "the reply reached its greatest length")


def repeated_call(records: Records) -> Iterator[Signal]:
    """The agent did again what it had done in this rollout: the same tool with the same arguments, or the
    same reply to the same prompt.

    Not what can't have known better or may be meant: of two calls at the same time neither repeats the other,
    and a tool that told something else the second time was worth asking again.
    """
    first_requests: dict[Hashable, ToolRequest] = {}
    for request in records.requests:
        before = first_requests.setdefault(_request_key(request), request)
        if before is not request and _after(before.call, request.call) and not _told_else(before, request):
            yield Signal(
                request.call.id,
                f"{request.name}: again {request.arguments or 'the same'}",
                request.tool_call_id,
            )
    asking = {request.call.id for request in records.requests}
    first_replies: dict[Hashable, Call] = {}
    for call in records.calls:
        said = transcript.text(transcript.replies(call))
        if call.status == "completed" and call.id not in asking and said:
            before_call = first_replies.setdefault((call.agent, _prompt_key(call), said), call)
            if before_call is not call and _after(before_call, call):
                yield Signal(call.id, f"again {said}")


def _request_key(request: ToolRequest) -> Hashable:
    return request.call.agent, request.name, _canonical(request.arguments, json.loads)


def _canonical(text: str, read: Callable[[str], Any]) -> str:
    """The text of equal JSON is equal, whatever the spaces and the order of keys."""
    try:
        return json.dumps(read(text), sort_keys=True)
    except (ValueError, RecursionError):
        return text


def _prompt_key(call: Call) -> Hashable:
    """The prompt as the engine read it; of a reply that was only seen, what was sent."""
    if call.prompt_ids is not None:
        return tuple(call.prompt_ids)
    before = call.request.get("previous_response_id")
    return json.dumps([before, transcript.prompt(call)], sort_keys=True, default=repr)


def _after(before: Call, call: Call) -> bool:
    """Whether it began when the other had ended, or is the very same."""
    return call.id == before.id or call.started_at >= before.ended_at


def _told_else(before: ToolRequest, request: ToolRequest) -> bool:
    return before.outcome is not None and request.outcome is not None and before.outcome != request.outcome
