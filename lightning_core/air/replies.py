"""Rules about replies as such: the same tool asked again, and a reply that was cut."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Hashable, Iterator
from typing import Final

from lightning_core.air.base import Outcome, Records, Signal, ToolRequest

_NO_ARGUMENTS: Final = frozenset(("", "{}", "[]", "null"))


def cut_by_length(records: Records) -> Iterator[Signal]:
    """The reply was cut because it reached its greatest length."""
    for call in records.calls:
        if any(choice.finish_reason == "length" for choice in call.choices):
            yield Signal(call.id, "the reply reached its greatest length")


def repeated_call(records: Records) -> Iterator[Signal]:
    """The agent asked for the same tool with the same arguments twice running, and was told the same.

    Twice running: the agent did nothing else in between, no other request and no reply in words. A request
    without arguments says nothing, as handoffs and "what is new?" have none. Nor does one that was told
    different things in this rollout, as a poll is, or whose outcome is unknown. Of two calls at the
    same time neither repeats the other.
    """
    told: defaultdict[Hashable, set[Outcome | None]] = defaultdict(set)
    for request in records.requests:
        told[_key(request)].add(request.outcome)
    for before, request in _running(records):
        outcomes = told[_key(request)]
        same = _key(before) == _key(request) and None not in outcomes and len(outcomes) == 1
        if same and _canonical(request.arguments) not in _NO_ARGUMENTS and _after(before, request):
            detail = f"{request.name}: again {request.arguments}"
            yield Signal(request.call.id, detail, request.tool_call_id)


def _running(records: Records) -> Iterator[tuple[ToolRequest, ToolRequest]]:
    """Each request with the one before it, where the same agent did nothing in between."""
    of_call: defaultdict[str, list[ToolRequest]] = defaultdict(list)
    for request in records.requests:
        of_call[request.call.id].append(request)
    last: dict[str, ToolRequest] = {}
    for call in records.calls:
        if call.status == "completed" and call.id not in of_call:
            last.pop(call.agent, None)
        for request in of_call[call.id]:
            if (before := last.get(call.agent)) is not None:
                yield before, request
            last[call.agent] = request


def _key(request: ToolRequest) -> Hashable:
    return request.call.agent, request.name, _canonical(request.arguments)


def _canonical(arguments: str) -> str:
    """The text of equal JSON is equal, whatever the spaces and the order of keys."""
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)
    except (ValueError, RecursionError):
        return arguments.strip()


def _after(before: ToolRequest, request: ToolRequest) -> bool:
    """Whether its call began when the other's had ended, or is the very same."""
    return before.call.id == request.call.id or request.call.started_at >= before.call.ended_at
