"""Log-probability gap: the engine that samples and the optimizer that trains do not agree on the policy.

    g = mean over tokens of |log p(training) - log p(engine)|, before the first step of an update
    found if  g > bound + per_version * staleness  in each of the last `steps` steps that have it

On the policy g is 0 but for rounding. Where it is not, the importance ratio of a token is off by about
exp(g) - 1, and the update is silently off-policy (Yao et al., "Your Efficient RL Framework Secretly Brings
You Off-Policy RL Training", 2025). Batches that are older by some updates differ rightly; that is what
`per_version` grants.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lightning_core.alerts.base import Finding, Scene


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobGap:
    """Engine and training give the same tokens other probabilities."""

    steps: int = 3
    """In a row."""
    bound: float = 0.05
    """Nats: the ratios are off by 5 %, a quarter of the clip's 20. The local engine has 1e-6."""
    per_version: float = 0.05
    """Nats that each update of staleness may add. Runs with batches four updates old had 0.07 at most."""

    def __call__(self, scene: Scene) -> Iterator[Finding]:
        measured = [entry.values for entry in scene.history if "logprob_gap_mean" in entry.values]
        last = measured[-self.steps :]
        if len(last) < self.steps or not all(map(self._beyond, last)):
            return
        gap = last[-1]["logprob_gap_mean"]
        yield Finding(
            f"the engine's log-probabilities are {gap:.3g} nats from training's, mean of all tokens, in "
            f"{self.steps} steps in a row: what is trained on was not sampled from the policy; give engine "
            "and training the same weights, number format and chat template, and keep a correction "
            "(Truncated)"
        )

    def _beyond(self, values: dict[str, float]) -> bool:
        allowed = self.bound + self.per_version * values.get("staleness_max", 0.0)
        return not values["logprob_gap_mean"] <= allowed  # not a number is beyond, too
