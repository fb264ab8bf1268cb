"""One of several servers, and which of them is to answer.

A rollout stays with one server, whose prefix cache then holds what it has said so far: the server with the
highest hash of (rollout, address) among those that answer. If one goes, only its own rollouts move.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from lightning_core.backends.chat.completion import Request

NONE = -1
"""No version of the weights."""


@dataclass(eq=False, slots=True)
class Replica:
    """One server, as seen from here."""

    url: str
    started_with: int
    """The version of the weights that its process reads at its start; NONE: not known."""
    version: int
    """The version it has, or had when it was lost."""
    born: float | None = None
    """When its process started."""
    lost: str | None = None
    """What was heard when it went; None: it answers."""
    sent: int = 0
    """Replies it was ever asked for."""
    running: int = 0
    """Replies under way."""
    waiting: dict[asyncio.Future[bool], Request] = field(default_factory=dict)
    """Turns to come, in their order: True when it has come, False when the server was lost before."""
    heard: float = 0.0
    """When something came from it last, or the first of the replies under way was sent to it."""
    doubted: bool = False
    """Whether it broke a reply off, and has answered no probe since."""
    misses: int = 0
    """Probes in a row without a good answer, nor any other sign of life between them."""
    missed: float = 0.0
    """When the last of them ended."""
    under_way: set[asyncio.Timeout] = field(default_factory=set)
    """Of the replies under way; one that is due breaks its reply off."""


def choose(replicas: Sequence[Replica], rollout: str | None) -> Replica | None:
    """The server to ask; None if none answers. Without a rollout: the one with the fewest replies."""
    answering = [replica for replica in replicas if replica.lost is None]
    if not answering:
        return None
    if rollout is None:
        return min(answering, key=lambda replica: replica.running + len(replica.waiting))
    return max(answering, key=lambda replica: _rank(rollout, replica.url))


def _rank(rollout: str, url: str) -> bytes:
    return hashlib.blake2b(f"{rollout} {url}".encode(), digest_size=8).digest()
