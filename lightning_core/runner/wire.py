"""What a runner and its worker processes say to each other: pickled messages over a socket pair.

Pickle is safe here as both ends are ours: the socket has no name, and the worker keeps its end to itself, so
that programs which the app starts have none of it.
"""

from __future__ import annotations

import asyncio
import pickle
import socket
import struct
from dataclasses import dataclass
from typing import Any

from lightning_core.runner.executor import Noticed, Outcome
from lightning_core.tracing.scope import Scope
from lightning_core.types import Task

_LENGTH = struct.Struct("!Q")


@dataclass(frozen=True, slots=True)
class Hello:
    """To the worker, first: what it is to run."""

    solve: bytes
    """As `packing.pack` made it."""


@dataclass(frozen=True, slots=True)
class Ready:
    """From the worker: the function is there."""


@dataclass(frozen=True, slots=True)
class Unable:
    """From the worker: the function can't be had here, and why."""

    error: str


@dataclass(frozen=True, slots=True)
class Run:
    """To the worker: run this attempt."""

    rollout_id: str
    attempt: int
    gateway_url: str
    token: str
    agents: tuple[str, ...] | None
    task: Task

    @classmethod
    def of(cls, scope: Scope, task: Task) -> Run:
        """Without what only the runner's own process can hold."""
        return cls(scope.rollout_id, scope.attempt, scope.gateway_url, scope.token, scope.agents, task)

    def scope(self) -> Scope:
        """The attempt's scope in the worker."""
        return Scope(self.rollout_id, self.attempt, self.gateway_url, self.token, self.agents)


@dataclass(frozen=True, slots=True)
class Tell:
    """To the worker: say what was noticed of the attempt so far."""


@dataclass(frozen=True, slots=True)
class Told:
    """From the worker: that."""

    noticed: Noticed


@dataclass(frozen=True, slots=True)
class Done:
    """From the worker: the attempt has ended."""

    outcome: Outcome
    noticed: Noticed


def pack(message: object) -> bytes:
    """A message as it goes over the socket."""
    content = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(content)) + content


async def read(reader: asyncio.StreamReader) -> Any:
    """The next message. Raises IncompleteReadError or ConnectionError if the other side is gone."""
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    return pickle.loads(await reader.readexactly(length))


def receive(sock: socket.socket) -> Any:
    """The same, for a thread."""
    (length,) = _LENGTH.unpack(_exactly(sock, _LENGTH.size))
    return pickle.loads(_exactly(sock, length))


def _exactly(sock: socket.socket, length: int) -> bytearray:
    content = bytearray(length)
    view, filled = memoryview(content), 0
    while filled < length:
        count = sock.recv_into(view[filled:])
        if count == 0:
            raise ConnectionResetError("the other side is gone")
        filled += count
    return content
