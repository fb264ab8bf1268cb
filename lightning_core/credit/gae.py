"""Turn-level GAE along the order of the calls (Schulman et al., arXiv 1506.02438)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lightning_core.credit.base import Comparison
from lightning_core.types import Key, Trajectory


@dataclass(frozen=True, slots=True)
class Gae:
    """delta(t) = r(t) + discount V(t+1) - V(t); A(t) = delta(t) + discount lam A(t+1)."""

    discount: float = 1.0
    lam: float = 0.95
    needs_critic = True

    def __call__(self, group: Sequence[Trajectory]) -> list[Comparison]:
        """One comparison without a baseline, and the critic's targets."""
        peers: list[dict[Key, float]] = []
        targets: dict[Key, float] = {}
        for trajectory in group:
            advantages: dict[Key, float] = {}
            later, following = 0.0, None
            for t in reversed([t for t in trajectory.transitions if t.trained]):
                value = t.value or 0.0
                reward = t.reward + (trajectory.final(t.agent) if following is None else 0.0)
                later = reward + self.discount * ((following or 0.0) + self.lam * later) - value
                advantages[t.key], targets[t.key], following = later, later + value, value
            peers.append(advantages)
        return [Comparison(tuple(peers), baseline=False, targets=targets)]
