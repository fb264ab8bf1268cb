"""Stored values as the keys and bytes of Redis, and back.

A rollout is two keys. `rollout:ID` is a small hash of what changes, kept under 64 bytes a field, so that
Redis stores it in one piece; `body:ID` is the rest, written once. What happened in an attempt lies in the
hashes `calls:ATTEMPT:ID`, `rewards:…` and `events:…`. The queue of a run, and that of all, is a sorted set
by falling priority, and among equals by the place of arrival, with which each member begins.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter

from lightning_core.stores.packing import dump_json, load_json
from lightning_core.stores.rows import CALLS, EVENTS
from lightning_core.types import Attempt, Call, Event, Reward, Rollout, Status

T = TypeVar("T", bound=BaseModel)
State = Sequence[Any]
"""Of a rollout: run, status, attempts, max_attempts, outcome, worker, until, request, version, place.

The outcome is JSON of (reward, error, finished_at), or empty. The request is the one that last changed
the status: one that is sent again, its answer lost, finds what it did."""

CHANGING = {"id", "run_id", "status", "attempts", "max_attempts", "reward", "error", "finished_at"}
_EVENT: TypeAdapter[Event] = TypeAdapter(Event)
_PARTS = struct.Struct("<cqIIIII")
"""Of a call: "c" if it has completed, else "-"; when it was recorded (it decides between calls that started
at once); and how long its parts are."""


@dataclass(frozen=True, slots=True)
class Row:
    """A rollout as it was read."""

    rollout: Rollout
    worker: str
    until: float
    request: str
    version: str
    place: str
    """Its place in the order of arrival, as 16 digits."""

    @property
    def member(self) -> str:
        """What stands for it in the queues."""
        return self.place + self.rollout.id

    def attempt(self, until: float | None = None) -> Attempt:
        lasts = self.until if until is None else until
        number = self.rollout.attempts
        return Attempt(rollout=self.rollout, number=number, worker=self.worker, lease_until=lasts)


def text(encoded: bytes) -> str:
    """A name as it was given, half a surrogate pair included."""
    return encoded.decode("utf-8", "surrogatepass")


def body(rollout: Rollout) -> bytes:
    """What of a rollout never changes."""
    return dump_json(rollout.model_dump(exclude=CHANGING))


def outcome(rollout: Rollout) -> bytes:
    """How it ended, as the state keeps it."""
    ended = (rollout.reward, rollout.error, rollout.finished_at)
    return b"" if ended == (None, None, None) else dump_json(ended)


def to_row(rollout_id: str, state: State, body: bytes | None) -> Row | None:
    """The rollout with that state; None if there is none."""
    if state[8] is None or body is None:
        return None
    run, status, attempts, most, ended, worker, until, request, version, place = state
    reward, error, finished_at = load_json(ended) if ended else (None, None, None)
    rollout = Rollout(
        **load_json(body),
        id=rollout_id,
        run_id=text(run),
        status=Status(status.decode()),
        attempts=int(attempts),
        max_attempts=int(most),
        reward=reward,
        error=error,
        finished_at=finished_at,
    )
    lasts = float(until) if until else 0.0
    return Row(rollout, text(worker), lasts, request.decode(), version.decode(), place.decode())


def pack_call(call: Call, now: int) -> bytes:
    """A call in one piece: its JSON and then the numbers, as they are."""
    row = CALLS.row(call)
    head, numbers = dump_json([*row[:13], *row[18:]]), (row[13], row[14] or b"", *row[15:18])
    missing = b"\x00" if row[14] is None else b"\x01"
    completed = b"c" if call.status == "completed" else b"-"
    return b"".join((_PARTS.pack(completed, now, *map(len, numbers)), *numbers, missing, head))


def unpack_calls(packed: Iterable[bytes]) -> list[Call]:
    """By the time they started."""
    found = sorted(map(_unpack_call, packed), key=lambda pair: (pair[1].started_at, pair[0]))
    return [call for _, call in found]


def _unpack_call(packed: bytes) -> tuple[int, Call]:
    _, now, *lengths = _PARTS.unpack_from(packed)
    parts: list[bytes | None] = []
    at = _PARTS.size
    for length in lengths:
        parts.append(packed[at : at + length])
        at += length
    head = load_json(packed[at + 1 :])
    if not packed[at]:
        parts[1] = None
    return now, CALLS.value((*head[:13], *parts, *head[13:]))


def pack_event(event: Event, place: int) -> bytes:
    """`place`: decides between events that started at once."""
    return b"%d:%b" % (place, EVENTS.row(event)[5])


def unpack_events(packed: Iterable[bytes]) -> list[Event]:
    """By the time they started."""
    pairs = (one.split(b":", 1) for one in packed)
    placed = [(int(place), _EVENT.validate_python(load_json(text))) for place, text in pairs]
    return [event for _, event in sorted(placed, key=lambda pair: (pair[1].started_at, pair[0]))]


def dump(value: BaseModel) -> bytes:
    return dump_json(value.model_dump())


def load(kind: type[T], texts: Iterable[bytes]) -> list[T]:
    return [kind(**load_json(text)) for text in texts]


def load_appended(kind: type[T], packed: Iterable[bytes]) -> list[T]:
    """Values that were appended to a hash, in that order."""
    placed = sorted((one.split(b":", 2) for one in packed), key=lambda parts: int(parts[0]))
    return load(kind, (text for _, _, text in placed))


def reward_fields(rewards: Sequence[Reward], request: str) -> list[str]:
    """Under which field each is kept: its own id, or what tells it from all others."""
    return [f"#{request}:{i}" if one.id is None else f"={one.id}" for i, one in enumerate(rewards)]
