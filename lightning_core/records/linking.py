"""Links by ids, never by time: a tool run, a span or a reward and its call, tries and their one call.

Pure functions over what a rollout recorded, so that it does not matter which arrived first. They are
applied when the records are read: an exporter sends a span when it ends, so children arrive before the
spans around them, and often in another batch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from hashlib import blake2b
from typing import Any, Final

from lightning_core.records.types import Call, Event, Reward, Span, ToolEvent

AGENT_NAME = "gen_ai.agent.name"
"""The attribute in which GenAI spans keep the name of the agent at work."""
RESPONSE_ID = "gen_ai.response.id"
"""The attribute in which GenAI spans keep the reply's id."""
TOOL_CALL_ID = "gen_ai.tool.call.id"
"""The attribute in which GenAI spans keep the id that the reply gave the request for a tool."""
SERVICE_NAME = "service.name"
"""The attribute in which a span that came from the app keeps its program's name, that of its resource."""
SCOPE_NAME = "otel.scope.name"
"""The attribute in which it keeps the name of its instrumentation."""
_KEPT_OF_ID: Final = 256
"""Characters of a call's id that stay when it gets an id of its own."""

_Ids = defaultdict[tuple[str | None, str], dict[str, Call]]
"""Calls by (rollout, id in the reply), then by their own ids."""
_Place = tuple[str, str, str]
"""The address of a span: (rollout, trace id, span id)."""


def link(calls: Iterable[Call], events: Sequence[Event]) -> list[Event]:
    """The events with `call_id` filled in where a call of the same rollout's reply bears their id.

    A tool run is found by its `tool_call_id`, a span by its `gen_ai.response.id` or, if it describes a tool
    run, by its `gen_ai.tool.call.id`. Some servers give the same ids in every reply: of several calls a tool
    run has the one by the agent who asked for it, and what still fits several stays unlinked. Links that are
    there already stay; what matches nothing is returned as it came.
    """
    calls = list(calls)
    asked, answered = _by_ids(calls)
    return [_linked(event, asked, answered) for event in events]


def _by_ids(calls: Iterable[Call]) -> tuple[_Ids, _Ids]:
    """The calls by the tool calls that their replies ask for, and by the ids of their replies."""
    asked: _Ids = defaultdict(dict)
    answered: _Ids = defaultdict(dict)
    for call in calls:
        for choice in call.choices:
            for tool_call_id in tool_call_ids(choice.message):
                asked[call.rollout_id, tool_call_id][call.id] = call
        if call.response_id is not None:
            answered[call.rollout_id, call.response_id][call.id] = call
    return asked, answered


def link_rewards(calls: Iterable[Call], rewards: Iterable[Reward]) -> list[Reward]:
    """The rewards with the own id of the call they are about in `call_id`.

    What the app gave may be that id, the id of the call's reply, or of a tool call that the reply asks for.
    What fits no call, or several, is returned as it came.
    """
    calls = list(calls)
    asked, named = _by_ids(calls)
    own = {(call.rollout_id, call.id) for call in calls}
    linked = []
    for reward in rewards:
        place = reward.rollout_id, reward.call_id or ""
        found = None if place in own else _only(named.get(place, {})) or _only(asked.get(place, {}))
        linked.append(reward if found is None else reward.model_copy(update={"call_id": found}))
    return linked


def in_order(rewards: Iterable[Reward]) -> list[Reward]:
    """Sorts rewards by the time they were given; equal times keep the order in which they were stored."""
    return sorted(rewards, key=lambda reward: reward.created_at)


def inherit_agents(events: Sequence[Event]) -> list[Event]:
    """The events with `agent` filled in on spans without one: that of the nearest span around them.

    Looked for in the same rollout and trace, as far up as spans are given.
    """
    spans = {_place(event, event.id): event for event in events if isinstance(event, Span)}
    known: dict[_Place, str | None] = {place: span.agent for place, span in spans.items() if span.agent}
    for place in spans:
        _find_agent(place, spans, known)
    return [
        event.model_copy(update={"agent": known[_place(event, event.id)]})
        if isinstance(event, Span) and event.agent is None
        else event
        for event in events
    ]


def origin(service: Any, scope: Any) -> dict[str, Any]:
    """Returns the attributes of a stored span that name its origin; what has no name is left out."""
    named = ((SERVICE_NAME, service), (SCOPE_NAME, scope))
    return {name: str(value) for name, value in named if value}


def tool_call_ids(message: dict[str, Any]) -> list[str]:
    """The ids of the tools that an assistant message asks for."""
    tool_calls = message.get("tool_calls")
    found = tool_calls if isinstance(tool_calls, list) else ()
    return [str(each["id"]) for each in found if isinstance(each, dict) and each.get("id")]


def _linked(event: Event, asked: _Ids, answered: _Ids) -> Event:
    if event.call_id is not None:
        return event
    if isinstance(event, Span):
        described = answered.get((event.rollout_id, str(event.attributes.get(RESPONSE_ID, ""))), {})
        call_id = _only(described)
        tool_call_id = str(event.attributes.get(TOOL_CALL_ID, ""))
    else:
        call_id, tool_call_id = None, event.tool_call_id or ""
    if call_id is None:
        call_id = _asking(event, asked.get((event.rollout_id, tool_call_id), {}))
    return event if call_id is None else event.model_copy(update={"call_id": call_id})


def _asking(event: Event, calls: dict[str, Call]) -> str | None:
    """The call that asked. Who did counts only among several: plugins may name a nested asker otherwise."""
    if len(calls) > 1 and isinstance(event, ToolEvent):
        return _only([call.id for call in calls.values() if call.agent == event.agent])
    return _only(calls)


def _only(call_ids: Collection[str]) -> str | None:
    return next(iter(call_ids)) if len(call_ids) == 1 else None


def _find_agent(place: _Place, spans: dict[_Place, Span], known: dict[_Place, str | None]) -> None:
    """Note the agent of a span, and of those passed on the way up, in `known`."""
    passed: dict[_Place, None] = {}
    step: _Place | None = place
    while step in spans and step not in known and step not in passed:
        passed[step] = None  # the parents of foreign spans may go round in circles
        span = spans[step]
        step = _place(span, span.parent_id) if span.parent_id else None
    agent = known.get(step) if step is not None else None
    known.update(dict.fromkeys(passed, agent))


def _place(span: Span, span_id: str) -> _Place:
    return span.rollout_id, span.trace_id, span_id


def under_own_id(call: Call) -> Call:
    """The call under an id of its own, as another has the id it came with. The new id follows from what was
    sampled, so it is the same if the call is stored again."""
    sampled = call.started_at, call.ended_at, call.prompt_ids, [one.completion_ids for one in call.choices]
    digest = blake2b(repr(sampled).encode(), digest_size=8).hexdigest()
    return call.model_copy(update={"id": f"{call.id[:_KEPT_OF_ID]}.{digest}"})


def answering(calls: Sequence[Call]) -> list[Call]:
    """The calls without those whose reply was lost on its way, so that the client sent them again: of
    completed tries of one call, the last that began is the one whose reply the app has.

    A try that its client gave up and that was read late may begin after it; then that one is taken for it.
    """
    known = {call.id: call for call in calls if call.status == "completed"}
    last: dict[str, Call] = {}
    for call in known.values():
        first = call.id.rpartition(".")[0]
        if first not in known or under_own_id(call.model_copy(update={"id": first})).id != call.id:
            first = call.id
        last[first] = max(last.get(first, call), call, key=lambda each: each.started_at)
    kept = {call.id for call in last.values()}
    return [call for call in calls if call.status != "completed" or call.id in kept]
