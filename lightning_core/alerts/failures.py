"""Failing rollouts: the app fails more often than it did, or most of the time.

p = failed share of the n rollouts of the last `window` steps,  q = (failed + 1) / (m + 2) of m before
found if  p >= share,  or  p - q >= rise  and  p - q > noise * sqrt(q * (1 - q) * (1 / n + 1 / m))
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from lightning_core.alerts.base import Finding, Scene
from lightning_core.alerts.series import total


@dataclass(frozen=True, slots=True, kw_only=True)
class FailingRollouts:
    """Rollouts fail more and more often."""

    window: int = 5
    """Steps that are counted together."""
    share: float = 0.5
    """Of rollouts that fail, from which on it does not matter what it was before."""
    rise: float = 0.1
    """By which the share must have risen."""
    noise: float = 4.0
    """Deviations that chance may explain."""

    def __call__(self, scene: Scene) -> Iterator[Finding]:
        steps = [entry for entry in scene.history if "rollouts" in entry.values]
        before, last = steps[: -self.window], steps[-self.window :]
        rollouts = total(last, "rollouts")
        if len(last) < self.window or not rollouts:
            return
        now, former = total(last, "failures") / rollouts, total(before, "rollouts")
        usual = (total(before, "failures") + 1) / (former + 2)
        chance = self.noise * math.sqrt(usual * (1 - usual) * (1 / rollouts + 1 / max(former, 1)))
        risen = bool(before) and now - usual >= self.rise and now - usual > chance
        if now >= self.share or risen:
            was = f", against {usual:.0%} before" if before else ""
            yield Finding(
                f"{now:.0%} of the rollouts of the last {self.window} steps failed{was}; the newest of them "
                "(agentlightning show RUN) say why: a service that is down, a time-out, an agent that writes "
                "what the app can't read",
                level="critical" if now >= self.share else "warning",
            )
