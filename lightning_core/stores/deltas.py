"""A call of a growing conversation, stored as an earlier call of its attempt and what was added.

A harness sends its whole conversation with each call. So the request and prompt of a long call are kept as
a delta: which call it is based on, how many bytes both begin and end with, and the bytes between. Bases are
completed calls, which no store changes. The base is read in the transaction that writes the delta, and a
checksum of the whole is kept. A call and all that depend on it are a family of at most `MOST_RELATED`, so a
damaged row loses no more than these.
"""

from __future__ import annotations

import json
import zlib
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

MOST_RELATED: Final = 32
"""Calls that depend on one whole call, itself included. With 32 a conversation of 60 turns is stored twice
whole; with 16 it takes 1.7 times the space."""
BLOCK: Final = 4096
"""Bytes of a request that have one mark. A shorter request is stored whole."""
_MARK: Final = b"\0"
"""The first byte of a delta. JSON begins with another."""
_MOST_CALLS, _MOST_ATTEMPTS = 16, 2048
MOST_BYTES: Final = 64 * 2**20
"""Whole bodies that a writer keeps. A chain whose last body is not among them is read: 4 ms for 600 KB."""
AttemptKey = tuple[str, int]
"""A rollout's id and the number of its attempt."""


class Body(NamedTuple):
    """The parts of a call that grow with its conversation, as they are stored."""

    request: bytes
    prompt_ids: bytes | None
    completion_ids: bytes

    @property
    def checksum(self) -> int:
        return zlib.crc32(self.prompt_ids or b"", zlib.crc32(self.request))

    @property
    def size(self) -> int:
        return len(self.request) + len(self.prompt_ids or b"") + len(self.completion_ids)


def checksum_of(stored: Body) -> int:
    """The checksum of a body that is stored whole or as a delta. Raises ValueError for another text."""
    return stored.checksum if base_of(stored) is None else _head(stored)[0][1]


def base_of(body: Body) -> str | None:
    """The id of the call that a delta is based on; None for a whole one."""
    return None if body.request[:1] != _MARK else str(_head(body)[0][0])


def to_delta(own: Body, checksum: int, name: str, base: Body) -> Body | None:
    """A body with its checksum, based on that of the call `name`; None if that saves less than half."""
    start = shared(base.request, own.request)
    limit = min(len(base.request), len(own.request)) - start
    end = shared(base.request[-limit:][::-1], own.request[-limit:][::-1]) if limit else 0
    ids, new_ids = 0, own.prompt_ids
    if own.prompt_ids is not None:
        ids = shared((base.prompt_ids or b"") + base.completion_ids, own.prompt_ids) // 4 * 4
        new_ids = own.prompt_ids[ids:]
    head = json.dumps([name, checksum, start, end, ids]).encode()
    new = b"".join((_MARK, head, b"\n", own.request[start : len(own.request) - end]))
    delta = Body(new, new_ids, own.completion_ids)
    return delta if 2 * delta.size <= own.size else None


def wholes(stored: Mapping[str, Body], names: Iterable[str]) -> dict[str, Body]:
    """The bodies of these calls, whole, from what is stored of their attempt. Left out are those that are
    damaged, and those that depend on these."""
    found: dict[str, _Pieces] = {}
    whole: dict[str, Body] = {}
    for name in names:
        with suppress(ValueError, TypeError, KeyError):
            chain: dict[str, str | None] = {}
            at: str | None = name
            while at is not None and at not in found and at not in chain:
                chain[at] = base_of(stored[at])
                at = chain[at]
            for own, base in reversed(chain.items()):
                found[own] = _pieces(stored[own], None if base is None else found[base])
            whole[name] = found[name].joined()
    return whole


def longest_prompts(stored: Mapping[str, Body], whole: Mapping[str, Body]) -> dict[str, bytes]:
    """For each of these calls that has a prompt, the longest that begins with it, as far as deltas say."""
    own = {name: body.prompt_ids for name, body in whole.items() if body.prompt_ids is not None}
    found = dict(own)
    for name in sorted(own, key=lambda name: len(own[name]), reverse=True):
        base = base_of(stored[name])
        if base in own and len(own[base]) <= _head(stored[name])[0][4] and len(found[base]) < len(own[name]):
            found[base] = found[name]
    return found


@dataclass(frozen=True, slots=True)
class _Pieces:
    """A body whose parts are pieces of several rows, so that a chain of deltas is copied once."""

    request: list[memoryview]
    prompt_ids: list[memoryview] | None
    completion_ids: bytes
    checksum: int | None

    def joined(self) -> Body:
        """Raises ValueError if it is not what it was."""
        prompt_ids = None if self.prompt_ids is None else b"".join(self.prompt_ids)
        body = Body(b"".join(self.request), prompt_ids, self.completion_ids)
        if self.checksum is not None and body.checksum != self.checksum:
            raise ValueError("its checksum differs")
        return body


def _pieces(own: Body, base: _Pieces | None) -> _Pieces:
    ids = None if own.prompt_ids is None else [memoryview(own.prompt_ids)]
    if base is None:
        return _Pieces([memoryview(own.request)], ids, own.completion_ids, None)
    (_, checksum, start, end, same), new = _head(own)
    request = [
        *_first(base.request, start),
        memoryview(new),
        *_first(base.request[::-1], end, last=True)[::-1],
    ]
    if ids is not None:
        ids = [*_first([*(base.prompt_ids or ()), memoryview(base.completion_ids)], same), *ids]
    return _Pieces(request, ids, own.completion_ids, checksum)


def _first(pieces: Iterable[memoryview], size: int, *, last: bool = False) -> list[memoryview]:
    """The first bytes of these pieces; with `last` the last bytes of each."""
    found = []
    for one in pieces:
        if size <= 0:
            break
        found.append(one[max(0, len(one) - size) :] if last else one[:size])
        size -= len(one)
    return found


def shared(first: bytes, second: bytes) -> int:
    """How many bytes both begin with."""
    size = min(len(first), len(second))
    if first[:size] == second[:size]:
        return size
    differs = np.frombuffer(first, np.uint8, size) != np.frombuffer(second, np.uint8, size)
    return int(differs.argmax())


def _head(delta: Body) -> tuple[tuple[str, int, int, int, int], bytes]:
    """(base, checksum, shared bytes at the start and at the end, shared bytes of the ids), and the new bytes.
    Raises ValueError for another text."""
    head, _, new = delta.request[1:].partition(b"\n")
    name, checksum, start, end, ids = json.loads(head)
    return (name, checksum, start, end, ids), new


@dataclass(frozen=True, slots=True)
class _Known:
    """A call that others may be based on."""

    chain: tuple[str, ...]
    """The ids of the whole call, of those in between, and its own."""
    marks: bytes
    family: set[str]
    """All calls that depend on the whole call, shared by all of them."""


class Recent:
    """Remembers which long calls of each attempt were written last, and stores the next by them.

    This is a hint: such a call may not be in the store, or be another one. So its row is read before it is
    used.
    """

    def __init__(self) -> None:
        self._calls: OrderedDict[AttemptKey, deque[_Known]] = OrderedDict()
        self._bodies: OrderedDict[tuple[AttemptKey, str], tuple[Body, int]] = OrderedDict()
        """Whole bodies and their checksums, the oldest first, so that few chains are read."""
        self._size = 0

    def stored(
        self,
        attempt: AttemptKey,
        name: str,
        whole: Body,
        read: Callable[[Sequence[str]], Mapping[str, Body]],
        *,
        is_base: bool,
    ) -> Body:
        """A call's body as it is to be stored: a delta, or whole as it was given.

        `read` returns completed calls of the attempt by their ids. `is_base`: whether the call has completed,
        so that others may be based on it.
        """
        marks = _marks(whole.request, *self._newest(attempt))
        checksum, delta = _checksum(whole, marks), None
        known = self._find(attempt, name, marks)
        if known is not None and (base := self._read(attempt, known.chain, read)) is not None:
            delta = to_delta(whole, checksum, known.chain[-1], base)
        chain, family = (known.chain, known.family) if known and delta else ((), set())
        family.add(name)
        if is_base:
            self._add(attempt, _Known((*chain, name), marks, family))
            self._keep((attempt, name), whole, checksum)
        return delta or whole

    def _newest(self, attempt: AttemptKey) -> tuple[bytes, bytes]:
        """The request of the call that was written last, and its marks; empty where it is not kept."""
        known = self._calls.get(attempt)
        body, _ = self._bodies.get((attempt, known[-1].chain[-1]), (None, 0)) if known else (None, 0)
        return (body.request, known[-1].marks) if known and body else (b"", b"")

    def _find(self, attempt: AttemptKey, name: str, marks: bytes) -> _Known | None:
        """The call whose request begins most like the one with these marks; of several the last."""
        known = self._calls.get(attempt, ())
        free = [one for one in known if len(one.family) < MOST_RELATED and name not in one.chain]
        alike = [shared(one.marks, marks) // 4 for one in free]
        if not any(alike):
            return None
        return free[max(range(len(free)), key=lambda at: (alike[at], at))]

    def _read(
        self, attempt: AttemptKey, chain: Sequence[str], read: Callable[[Sequence[str]], Mapping[str, Body]]
    ) -> Body | None:
        """The body of the last call of a chain; None if it is not stored so."""
        last = chain[-1]
        body, checksum = self._drop((attempt, last))
        if body is None:
            return wholes(read(chain), [last]).get(last)
        with suppress(ValueError, TypeError, KeyError):
            return body if checksum_of(read([last])[last]) == checksum else None
        return None

    def _add(self, attempt: AttemptKey, call: _Known) -> None:
        self._calls.setdefault(attempt, deque(maxlen=_MOST_CALLS)).append(call)
        self._calls.move_to_end(attempt)
        if len(self._calls) > _MOST_ATTEMPTS:
            self._calls.popitem(last=False)

    def _keep(self, place: tuple[AttemptKey, str], body: Body, checksum: int) -> None:
        self._drop(place)
        self._bodies[place] = body, checksum
        self._size += body.size
        while self._size > MOST_BYTES:
            self._drop(next(iter(self._bodies)))

    def _drop(self, place: tuple[AttemptKey, str]) -> tuple[Body | None, int]:
        body, checksum = self._bodies.pop(place, (None, 0))
        self._size -= 0 if body is None else body.size
        return body, checksum


def _marks(request: bytes, before: bytes, marks: bytes) -> bytes:
    """The checksums of the first block, of the first two, and so on, 4 bytes each. Those of blocks that an
    earlier request, `before`, begins with too are taken from its `marks`."""
    same = marks[: shared(before, request) // BLOCK * 4]
    found, checksum = [], _last(same)
    for at in range((len(same) // 4 + 1) * BLOCK, len(request) + 1, BLOCK):
        checksum = zlib.crc32(memoryview(request)[at - BLOCK : at], checksum)
        found.append(checksum)
    return same + np.asarray(found, "<u4").tobytes()


def _last(marks: bytes) -> int:
    return int.from_bytes(marks[-4:], "little")


def _checksum(body: Body, marks: bytes) -> int:
    """`Body.checksum`, gone on with from the request's last mark."""
    rest = memoryview(body.request)[len(marks) // 4 * BLOCK :]
    return zlib.crc32(body.prompt_ids or b"", zlib.crc32(rest, _last(marks)))
