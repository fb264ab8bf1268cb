"""Disk filling: the run will stop for want of space before it is done.

    used per step  u = decline of (free + checkpoints) from the first to the last reading, per step
    steps left     (free - largest checkpoint) / u
    found if  steps left < min(steps, updates still to make),  or no room for another checkpoint

Checkpoints are added back as old ones are deleted: what grows is the rest, such as the store. A disk that
others fill as well is full all the same, so it is the free space that counts and not the run's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lightning_core.alerts.base import Finding, Scene, Space


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskFilling:
    """The disk of the run's folder is running full."""

    steps: int = 20
    """Updates ahead: time to make room."""
    least: int = 5
    """Readings that an estimate needs."""

    def __call__(self, scene: Scene) -> Iterator[Finding]:
        if not scene.space:
            return
        last = scene.space[-1]
        left = self._left(scene.space)
        to_make = None if scene.total_steps is None else scene.total_steps - last.step - 1
        if to_make == 0:
            return
        full = last.free < last.largest
        if full or (left is not None and left < min(self.steps, to_make or self.steps)):
            ahead = "" if left is None or full else f", enough for about {left:.0f} more steps"
            yield Finding(
                f"the disk of the run's folder has {last.free / 1e9:.2f} GB free and a checkpoint takes "
                f"{last.largest / 1e9:.2f} GB{ahead}; make room, keep fewer checkpoints (keep_checkpoints), "
                "or stop and go on elsewhere: a run that is stopped by a full disk resumes from its last "
                "checkpoint",
                level="critical" if full else "warning",
            )

    def _left(self, space: Sequence[Space]) -> float | None:
        """Updates that the free space is enough for; None if that can't be said, or nothing is used."""
        first, last = space[0], space[-1]
        if len(space) < self.least or last.step == first.step:
            return None
        used = (first.free + first.checkpoints - last.free - last.checkpoints) / (last.step - first.step)
        return max(0.0, last.free - last.largest) / used if used > 0 else None
