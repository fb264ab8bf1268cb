"""One of several servers, and which of them is to answer.

A rollout stays with one server, whose prefix cache then holds what it has said so far: the server with the
highest hash of (rollout, address) among those that answer. If one goes, only its own rollouts move.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import aiohttp

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
    heard: float = 0.0
    """When something came from it last, or was sent to it."""
    misses: int = 0
    """Times in a row that it did not say it was well."""
    responses: set[aiohttp.ClientResponse] = field(default_factory=set)
    """Of the replies under way."""


def choose(replicas: Sequence[Replica], rollout: str | None) -> Replica | None:
    """The server to ask; None if none answers. Without a rollout: the one with the fewest under way."""
    answering = [replica for replica in replicas if replica.lost is None]
    if not answering:
        return None
    if rollout is None:
        return min(answering, key=lambda replica: replica.running)
    return max(answering, key=lambda replica: _rank(rollout, replica.url))


def _rank(rollout: str, url: str) -> bytes:
    return hashlib.blake2b(f"{rollout} {url}".encode(), digest_size=8).digest()
