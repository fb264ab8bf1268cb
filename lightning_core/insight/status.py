"""The state of a run, from its record, its members and the lock of its folder."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Final, Literal

from lightning_core.records.types import Member, Run
from lightning_core.stores.heartbeat import living

State = Literal["not started", "running", "stopping", "finished", "stopped", "failed", "killed"]
BROKEN: Final = frozenset({"failed", "killed"})
"""States after which a run needs a person."""
ENDED: Final = "ended by"
"""Where a run's config keeps the error that it ended with; a resumed run forgets it."""


def state_of(run: Run | None, members: Sequence[Member], held: bool | None = None) -> State:
    """How a run stands. `held`: whether a process of this machine has its folder open; None without a folder.

    - "killed": it says that it is running, but its trainer is gone.
    - "stopping": its end is recorded, and its trainer still closes what it has open.
    """
    if run is None:
        return "not started"
    alive = _alive(members, held)
    if run.status == "running":
        return "running" if alive else "killed"
    return "stopping" if alive and run.status != "finished" and _trainers(members) else run.status


def is_served(members: Sequence[Member]) -> bool:
    """Whether a gateway answers by the run's current version now."""
    return any(each.role == "gateway" for each in living(members))


def _trainers(members: Sequence[Member]) -> list[Member]:
    return [each for each in living(members) if each.role == "trainer"]


def _alive(members: Sequence[Member], held: bool | None) -> bool:
    """The lock is right at once, for a trainer of this machine. A heartbeat is late by up to 20 seconds."""
    if held:
        return True
    trainers = _trainers(members)
    if held is None:
        return bool(trainers)
    return any(each.data.get("host") != socket.gethostname() for each in trainers)
