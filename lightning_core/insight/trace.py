"""All that was recorded of one rollout as a tree: calls, tool runs, spans and rewards, each at its place.

Placed by ids alone. A tool run and an intermediate reward lie under the call they are about. Spans lie
under their parents; a span that describes a call lies under that call, which takes the span's place among
the others, and likewise a span that describes a tool run. So a call made within a tool lies under the tool,
as far as spans tell. Siblings are in the order they started, rewards last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lightning_core.experience.returns import with_final
from lightning_core.records.linking import RESPONSE_ID, TOOL_CALL_ID, inherit_agents, link, link_rewards
from lightning_core.records.types import Call, Event, Reward, Rollout, Span, ToolEvent
from lightning_core.stores.base import Store

Item = Call | ToolEvent | Span | Reward
Place = tuple[str, str]
"""The address of a record in the tree: (kind, id)."""
_Parents = dict[Place, Place | None]
_Run = tuple[str | None, str | None]
"""The request that a tool run answers: (call id, tool call id). One reply may give two requests the same
id."""


@dataclass(frozen=True, slots=True)
class Node:
    """One record and what lies under it."""

    item: Item
    children: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True)
class Trace:
    """A rollout's last attempt, as a tree."""

    rollout: Rollout
    nodes: tuple[Node, ...]

    def walk(self) -> Iterator[tuple[Node, Node | None]]:
        """Every node with the one it lies under, parents first, in the order they are shown."""
        waiting: list[tuple[Node, Node | None]] = [(node, None) for node in reversed(self.nodes)]
        while waiting:
            node, parent = waiting.pop()
            yield node, parent
            waiting += [(child, node) for child in reversed(node.children)]


async def read_traces(store: Store, rollouts: Sequence[Rollout]) -> list[Trace]:
    """The traces of the rollouts, in their order."""
    ids = [rollout.id for rollout in rollouts]
    calls = await store.get_calls(ids)
    rewards = await store.get_rewards(ids)
    events = await store.get_events(ids)
    return [
        build(with_final(one, rewards[one.id]), calls[one.id], rewards[one.id], events[one.id])
        for one in rollouts
    ]


def build(
    rollout: Rollout, calls: Sequence[Call], rewards: Sequence[Reward], events: Sequence[Event]
) -> Trace:
    """The tree of one rollout's records; every record is in it exactly once."""
    events = inherit_agents(link(calls, events))
    items: dict[Place, Item] = {_place(item, 0): item for item in [*calls, *events]}
    items |= {_place(reward, number): reward for number, reward in enumerate(link_rewards(calls, rewards))}
    parents = _parents(items)
    _cut_circles(parents)
    return Trace(rollout, _grow(items, parents))


def describes_call(event: Event) -> bool:
    """Whether it is a span about one LLM call; spans of agents may bear a reply's id as well."""
    if not isinstance(event, Span) or RESPONSE_ID not in event.attributes:
        return False
    return event.attributes.get("gen_ai.operation.name") not in (
        "invoke_agent",
        "create_agent",
        "execute_tool",
    )


def _place(item: Item, number: int) -> Place:
    match item:
        case Call():
            return "call", item.id
        case Span():
            return "span", f"{item.trace_id}/{item.id}"
        case ToolEvent():
            return "tool", item.id
        case Reward():
            return "reward", str(number)


def _parents(items: dict[Place, Item]) -> _Parents:
    describing: dict[str, Span] = {}
    running: dict[_Run, Place | None] = {}
    for key, item in items.items():
        if isinstance(item, Span) and item.call_id is not None and describes_call(item):
            describing.setdefault(item.call_id, item)
        elif isinstance(item, ToolEvent):
            run = item.call_id, item.tool_call_id
            running[run] = None if run in running else key
    wanted = {key: _parent(item, describing, running) for key, item in items.items()}
    return {key: parent if parent in items else None for key, parent in wanted.items()}


def _parent(item: Item, describing: dict[str, Span], running: dict[_Run, Place | None]) -> Place | None:
    match item:
        case Call():
            return _around(describing[item.id]) if item.id in describing else None
        case Span(call_id=str() as call_id) if describes_call(item):
            return "call", call_id
        case Span(call_id=str() as call_id) if TOOL_CALL_ID in item.attributes:
            return running.get((call_id, str(item.attributes[TOOL_CALL_ID]))) or ("call", call_id)
        case Span():
            return _around(item)
        case ToolEvent(call_id=call_id) | Reward(call_id=call_id):
            return ("call", call_id) if call_id is not None else None


def _around(span: Span) -> Place | None:
    return ("span", f"{span.trace_id}/{span.parent_id}") if span.parent_id is not None else None


def _cut_circles(parents: _Parents) -> None:
    """Moves records to the top that foreign ids have made their own ancestors."""
    safe: set[Place] = set()
    for key in parents:
        path: dict[Place, None] = {}
        step: Place | None = key
        while step is not None and step not in safe and step not in path:
            path[step] = None
            step = parents[step]
        if step in path:
            parents[next(reversed(path))] = None
        safe.update(path)


def _grow(items: dict[Place, Item], parents: _Parents) -> tuple[Node, ...]:
    below: dict[Place | None, list[Place]] = {}
    for key in sorted(items, key=lambda key: _order(items[key])):
        below.setdefault(parents[key], []).append(key)
    downwards = list(below.get(None, ()))
    for key in downwards:
        downwards += below.get(key, ())
    nodes: dict[Place, Node] = {}
    for key in reversed(downwards):  # children first; without recursion, as spans may be nested very deep
        nodes[key] = Node(items[key], tuple(nodes[child] for child in below.get(key, ())))
    return tuple(nodes[key] for key in below.get(None, ()))


def _order(item: Item) -> tuple[bool, float]:
    if isinstance(item, Reward):
        return True, item.created_at
    return False, item.started_at
