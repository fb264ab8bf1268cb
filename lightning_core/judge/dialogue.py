"""What happened in a rollout as a judge reads it: each message once, in order, with the agent it belongs to.

A call's prompt repeats what earlier calls have read and said. What a call shares with the start of an earlier
one is therefore left out, and what all rollouts of a group begin with is told once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from lightning_core import transcript
from lightning_core.dialects.lenient import Message
from lightning_core.types import Call


@dataclass(frozen=True, slots=True)
class Line:
    """One message, or why there is none."""

    agent: str
    role: str
    text: str


Dialogue = tuple[Line, ...]


def dialogue(calls: Sequence[Call]) -> Dialogue:
    """All that was read and said in the calls, in the order they started."""
    told: list[Line] = []
    before: list[list[Line]] = []
    for call in calls:
        read = [_line(call, message) for message in transcript.prompt(call)]
        said = [_line(call, message) for message in transcript.replies(call)]
        if call.status != "completed":
            said.append(Line(call.agent, call.status, call.error or ""))
        known = max((_shared(read, earlier) for earlier in before), default=0)
        told += read[known:] + said
        before.append(read + said)
    return tuple(told)


def common_start(dialogues: Sequence[Dialogue]) -> int:
    """How many lines all of the dialogues begin with."""
    first, *others = dialogues
    return min((_shared(first, other) for other in others), default=0)


def shorten(lines: Dialogue, characters: int) -> Dialogue:
    """The beginning and the end, so many characters of text in all, with a line in place of the rest."""
    total = length(lines)
    if total <= characters:
        return lines
    opening = characters // 2
    closing = total - (characters - opening)
    head: list[Line] = []
    tail: list[Line] = []
    start = 0
    for line in lines:
        end = start + len(line.text)
        if start < opening:
            head.append(replace(line, text=line.text[: opening - start]))
        if end > closing:
            tail.append(replace(line, text=line.text[max(0, closing - start) :]))
        start = end
    gap = Line("", "left out", f"{total - characters} characters are left out here")
    return (*head, gap, *tail)


def share_out(lengths: Sequence[int], characters: int) -> list[int]:
    """How much of each may be kept: what the short ones do not need goes to the long ones."""
    shares = [0] * len(lengths)
    left = max(0, characters)
    order = sorted(range(len(lengths)), key=lambda index: lengths[index])
    for done, index in enumerate(order):
        shares[index] = min(lengths[index], left // (len(lengths) - done))
        left -= shares[index]
    return shares


def length(lines: Dialogue) -> int:
    """Characters of all texts."""
    return sum(len(line.text) for line in lines)


def _line(call: Call, message: Message) -> Line:
    text = "\n".join(transcript.said(part) for part in message["parts"])
    return Line(call.agent, str(message["role"]), text)


def _shared(one: Sequence[Line], other: Sequence[Line]) -> int:
    """How many lines both begin with; agents may read the same."""
    pairs = zip(one, other, strict=False)
    return sum(
        1 for _ in takewhile(lambda pair: (pair[0].role, pair[0].text) == (pair[1].role, pair[1].text), pairs)
    )
