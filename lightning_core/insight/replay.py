"""One rollout step by step: a row for each record, in the order they are shown, with all that is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from lightning_core import transcript
from lightning_core.insight.why import Answers, Reason
from lightning_core.trace import Item, Node, Trace
from lightning_core.types import Call, Reward, Span, ToolEvent

Kind = Literal["call", "tool", "span", "reward"]


@dataclass(frozen=True, slots=True)
class Row:
    """A record of the rollout at its place in the tree."""

    number: int
    """From 1, in the order of the rows: its address within the rollout."""
    parent: int | None
    """The number of the row that it lies under."""
    depth: int
    """0 at the top."""
    kind: Kind
    item: Item
    agent: str | None
    """Who did it, or whose it is."""
    start: float | None
    """Seconds after the first record of the rollout began; None for a reward."""
    seconds: float | None
    """How long it took; None for a reward."""
    waited: float
    """Seconds right before it in which no call and no tool that was recorded ran."""
    tokens_read: int | None
    tokens_written: int | None
    """Of a call, if its engine gave token ids."""
    signals: tuple[Reward, ...]
    """The intermediate rewards about this call, the automatic ones with source "air:" and their rule."""
    reasons: tuple[Reason, ...]
    """Why each choice of this call has its advantage; () if that was not asked, or if it is no transition."""


def replay(trace: Trace, answers: Answers | None = None) -> list[Row]:
    """The rows of a rollout, parents before what lies under them. With `answers` of its step each call says
    why it has its advantage."""
    walked = list(trace.walk())
    numbers = {id(node): number for number, (node, _) in enumerate(walked, 1)}
    depths: dict[int, int] = {}
    for node, parent in walked:
        depths[id(node)] = 0 if parent is None else depths[id(parent)] + 1
    timed = [node.item for node, _ in walked if not isinstance(node.item, Reward)]
    begun = min((_times(item)[0] for item in timed), default=0.0)
    idle = _waits(trace)
    return [
        _row(
            node,
            number=numbers[id(node)],
            parent=None if parent is None else numbers[id(parent)],
            depth=depths[id(node)],
            begun=begun,
            idle=idle,
            reasons=_reasons(node.item, answers),
        )
        for node, parent in walked
    ]


def _row(
    node: Node,
    *,
    number: int,
    parent: int | None,
    depth: int,
    begun: float,
    idle: Mapping[int, float],
    reasons: tuple[Reason, ...],
) -> Row:
    item = node.item
    start, end = (None, None) if isinstance(item, Reward) else _times(item)
    below = (child.item for child in node.children)
    return Row(
        number=number,
        parent=parent,
        depth=depth,
        kind=kind_of(item),
        item=item,
        agent=item.agent,
        start=None if start is None else start - begun,
        seconds=None if start is None or end is None else end - start,
        waited=idle.get(id(item), 0.0),
        tokens_read=transcript.tokens_read(item) if isinstance(item, Call) else None,
        tokens_written=transcript.tokens_written(item) if isinstance(item, Call) else None,
        signals=tuple(one for one in below if isinstance(one, Reward) and one.kind == "intermediate"),
        reasons=reasons,
    )


def kind_of(item: Item) -> Kind:
    """What kind of record it is."""
    match item:
        case Call():
            return "call"
        case ToolEvent():
            return "tool"
        case Span():
            return "span"
        case Reward():
            return "reward"


def _reasons(item: Item, answers: Answers | None) -> tuple[Reason, ...]:
    if answers is None or not isinstance(item, Call):
        return ()
    return tuple(answers.of_call(item.rollout_id or "", item.id))


def _waits(trace: Trace) -> dict[int, float]:
    """By the identity of a call or tool run: how long nothing had run when it began."""
    items = [node.item for node, _ in trace.walk() if isinstance(node.item, Call | ToolEvent)]
    waits: dict[int, float] = {}
    busy: float | None = None
    for item in sorted(items, key=lambda one: _times(one)[0]):
        start, end = _times(item)
        if busy is not None and start > busy:
            waits[id(item)] = start - busy
        busy = end if busy is None else max(busy, end)
    return waits


def _times(item: Call | ToolEvent | Span) -> tuple[float, float]:
    return item.started_at, item.ended_at
