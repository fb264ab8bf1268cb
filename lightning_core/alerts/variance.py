"""Zero-variance share: rollouts are made and teach nothing, as all of a group came to the same.

    found if  (groups of equal rewards) / (groups) >= share    over the last `window` steps

Such groups have no advantage under any baseline, and are left out of the update.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean

from lightning_core.alerts.base import Finding, Scene
from lightning_core.alerts.series import numbers, total


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroVariance:
    """Nearly all groups have equal rewards."""

    window: int = 5
    """Steps that are counted together."""
    share: float = 0.95
    """Of the groups. Of 52 recorded runs, many of which had learnt their tasks, one came to it: with a reward
    of 0.99."""

    def __call__(self, scene: Scene) -> Iterator[Finding]:
        steps = [entry for entry in scene.history if "groups" in entry.values][-self.window :]
        groups, equal = total(steps, "groups"), total(steps, "zero_variance_groups")
        if len(steps) < self.window or equal < self.share * groups or not groups:
            return
        reward = fmean(numbers(steps, "reward") or [0.0])
        yield Finding(
            f"{equal:.0f} of {groups:.0f} groups of the last {self.window} steps had equal rewards (mean "
            f"{reward:.3g}), so their rollouts taught nothing; if that is the best there is, stop here, else "
            "give tasks that are solved sometimes, a finer reward, a larger group_size, or refill=1"
        )
