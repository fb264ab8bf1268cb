"""The rules that see a run come to a stop: a process, a rollout or the disk it writes to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from lightning_core.alerts.watch import Finding, Scene, Space
from lightning_core.records.types import Member


@dataclass(frozen=True, slots=True, kw_only=True)
class StuckWorker:
    """Stuck workers: a process that plays in the run gives no more sign of life.

        found if  now - seen_at > seconds    for a gateway, and for a runner while rollouts are under way

    Only of those seen since this trainer began: who died before it has no part in what it waits for.
    """

    seconds: float = 60.0
    """Twenty signs of life, and the lease of a rollout: what it held goes to others by now."""

    def __call__(self, scene: Scene) -> Iterator[Finding]:
        trainers = [_place(each) for each in scene.members if each.role == "trainer"]
        for member in scene.members:
            silent = scene.now - member.seen_at
            idle = member.role == "runner" and not scene.running
            if member.role == "trainer" or idle or member.seen_at < scene.since or silent <= self.seconds:
                continue
            host = f" on {member.data['host']}" if "host" in member.data else ""
            todo = (
                "it is in the trainer's own process, whose event loop was blocked: run the app's slow work "
                "in a thread (asyncio.to_thread), or write the function given to fit() without async"
                if _place(member) in trainers
                else "what it held goes to others, once its leases have run out: look at its log, end it if "
                "it still runs, and start it again under the same name"
            )
            yield Finding(
                f"{member.role} {member.name!r}{host} was last seen {silent:.0f} s ago; {todo}",
                subject=f"{member.role}/{member.name}",
                since=f"{member.seen_at:.0f}",
            )


def _place(member: Member) -> tuple[object, object] | None:
    """Host and process, where it says both."""
    host, process = member.data.get("host"), member.data.get("pid")
    return None if host is None or process is None else (host, process)


@dataclass(frozen=True, slots=True, kw_only=True)
class StuckRollout:
    """Stuck rollouts: one goes on far longer than the others take, and the step waits for it.

        found if  t > factor * max(median of those that ended, least / factor)  and `known` or more have ended

    t is how long a rollout has been seen under way.
    """

    factor: float = 10.0
    """Times what others take: agents differ by two or three times, not by ten."""
    least: float = 120.0
    """Seconds below which nothing is stuck."""
    known: int = 8
    """Rollouts that must have ended for a comparison."""

    def __call__(self, scene: Scene) -> Iterator[Finding]:
        if len(scene.ended) < self.known:
            return
        usual = median(scene.ended)
        for rollout, seconds in scene.running.items():
            if seconds > max(self.factor * usual, self.least):
                yield Finding(
                    f"rollout {rollout} has been under way for {seconds:.0f} s, and others take {usual:.0f} "
                    "s at most; its app may wait for something that never comes: give its clients and tools "
                    "a time-out, or Trainer a smaller timeout, and see agentlightning show RUN --rollout",
                    subject=rollout,
                    since="",
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskFilling:
    """Disk filling: the run will stop for want of space before it is done.

        used per step  u = decline of (free + checkpoints) from the first to the last reading, per step
        steps left     (free - largest checkpoint) / u
        found if  steps left < min(steps, updates still to make),  or no room for another checkpoint

    Checkpoints are added back as old ones are deleted: what grows is the rest, such as the store. A disk that
    others fill as well is full all the same, so it is the free space that counts and not the run's own.
    """

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
