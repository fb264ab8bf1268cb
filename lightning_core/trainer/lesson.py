"""A lesson: what one update is made from, and how it is read from what was recorded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from lightning_core.linking import with_final
from lightning_core.trainer.collect import to_trajectory, unusable_groups
from lightning_core.trainer.judging import Judging
from lightning_core.trainer.session import Session
from lightning_core.types import Call, Reward, Rollout, Trajectory


@dataclass(frozen=True, slots=True)
class Lesson:
    """What one update is made from."""

    rollouts: list[Rollout]
    """All finished, some without a reward; none if it is made of demonstrations."""
    calls: dict[str, list[Call]]
    trajectories: list[Trajectory]
    """Of the rollouts with a reward, but those of unusable groups; or demonstrations, whose reward is NaN."""
    seconds: float
    """Spent until they were there."""
    rewards: dict[str, list[Reward]] = field(default_factory=dict)
    """By rollout id; final ones and those given on the way."""
    refilled: int = 0
    """Groups that were added in place of groups that said nothing."""
    unusable_groups: int = 0
    """Groups that are left out, as a reward in them is no number or too large."""

    def with_groups(self, other: Lesson) -> Lesson:
        """This lesson and the groups that were added to it."""
        return Lesson(
            [*self.rollouts, *other.rollouts],
            {**self.calls, **other.calls},
            [*self.trajectories, *other.trajectories],
            self.seconds + other.seconds,
            {**self.rewards, **other.rewards},
            self.refilled + len({rollout.group_id for rollout in other.rollouts}),
            self.unusable_groups + other.unusable_groups,
        )


async def read_lesson(
    session: Session, judging: Judging | None, rollouts: Sequence[Rollout], began: float | None = None
) -> Lesson:
    """The lesson of finished rollouts: what they recorded, the rewards that count, and their trajectories.

    With AIR on they have their automatic rewards from here on, and with `judging` those of the judge. `began`
    is when they were first waited for.
    """
    calls, rewards = await session.records(rollouts)
    unusable = unusable_groups(rollouts, rewards)
    if judging is not None:
        judged = [rollout for rollout in rollouts if rollout.group_id not in unusable]
        rewards = await judging.score(judged, calls, rewards)
    ended = [with_final(rollout, rewards[rollout.id]) for rollout in rollouts]
    counted = [r for r in ended if r.reward is not None and r.group_id not in unusable]
    trajectories = await asyncio.to_thread(  # 0.2 s for 64 rollouts of 100 calls
        lambda: [to_trajectory(rollout, calls[rollout.id], rewards[rollout.id]) for rollout in counted]
    )
    seconds = 0.0 if began is None else time.perf_counter() - began
    return Lesson(ended, calls, trajectories, seconds, rewards, unusable_groups=len(unusable))
