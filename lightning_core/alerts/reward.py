"""Reward collapse: the policy had learnt something and lost it.

    fall = best - recent,    best = the highest mean of `window` steps in a row, recent = that of the last
    found if  fall > drop * max(|best|, best - lowest)  and  fall > noise * s * sqrt(2 / window)

`lowest` is the lowest reward of a step and s the jitter of the rewards, both before the last window. The
first bound says that the fall is large, the second that it is no chance: sqrt(2 / window) * s is the
deviation of the difference of two such means. The best of many is far from an ordinary one, so chance needs
six: of runs of 200 steps of nothing but noise, as loud as a mean of 8 coin flips, 1 to 5 in 100 come to it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean

from lightning_core.alerts.base import Finding, Scene
from lightning_core.alerts.series import jitter, moving_means, numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardCollapse:
    """The reward has fallen far below what it was, and stays there."""

    window: int = 5
    """Steps that are averaged."""
    drop: float = 0.4
    """Part of the best that must be lost. In 52 recorded runs the mean of five steps, on tasks that differ,
    was never more than 0.3 of the best below it."""
    noise: float = 6.0
    """Deviations that chance may explain."""

    def __call__(self, scene: Scene) -> Iterator[Finding]:
        rewards = numbers(scene.history, "reward")
        before, last = rewards[: -self.window], rewards[-self.window :]
        if len(before) < self.window:
            return
        best, recent = max(moving_means(before, self.window)), fmean(last)
        fall = best - recent
        large = self.drop * max(abs(best), best - min(before))
        chance = self.noise * jitter(before) * math.sqrt(2 / self.window)
        if fall > large and fall > chance:
            yield Finding(
                f"the mean reward of {self.window} steps fell from {best:.3g} to {recent:.3g}; stop, and go "
                "on from a checkpoint before the fall with a lower learning rate or kl above 0, and look at "
                "rollouts from before and after it (agentlightning show RUN --rollout worst)",
                level="critical",
            )
