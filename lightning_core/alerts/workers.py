"""Stuck workers: a process that plays in the run gives no more sign of life.

    found if  now - seen_at > seconds    for a gateway, and for a runner while rollouts are under way

Only of those seen since this trainer began: who died before it has no part in what it waits for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lightning_core.alerts.base import Finding, Scene


@dataclass(frozen=True, slots=True, kw_only=True)
class StuckWorker:
    """A worker or a gateway has gone silent."""

    seconds: float = 60.0
    """Twenty signs of life, and the lease of a rollout: what it held goes to others by now."""

    def __call__(self, scene: Scene) -> Iterator[Finding]:
        for member in scene.members:
            silent = scene.now - member.seen_at
            idle = member.role == "runner" and not scene.running
            if member.role == "trainer" or idle or member.seen_at < scene.since or silent <= self.seconds:
                continue
            host = f" on {member.data['host']}" if "host" in member.data else ""
            yield Finding(
                f"{member.role} {member.name!r}{host} was last seen {silent:.0f} s ago; what it held goes to "
                "others, once its leases have run out: look at its log, end it if it still runs, and start "
                "it anew under the same name",
                subject=f"{member.role}/{member.name}",
                since=f"{member.seen_at:.0f}",
            )
