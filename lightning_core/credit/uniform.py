"""Uniform credit: every call of a rollout gets the rollout's own advantage.

    A(i, t) = (G_i - mean_j G_j) / std_j G_j      for every trained transition t of rollout i

with G_i the return of rollout i and j over the rollouts of the group, each counted once.
This is LightningRL's identical assignment (Luo et al., Agent Lightning, arXiv 2508.03680, section 3.3) with
GRPO's group baseline (Shao et al., DeepSeekMath, arXiv 2402.03300, section 4.1).

Assumes that all calls are equally responsible for the outcome.
"""

from __future__ import annotations

from collections.abc import Sequence

from lightning_core.credit.base import normalise, total_return
from lightning_core.types import Key, Trajectory


def uniform(group: Sequence[Trajectory]) -> dict[Key, float]:
    """The advantage of every trained transition; empty if the returns are all equal."""
    members = [trajectory for trajectory in group if any(t.trained for t in trajectory.transitions)]
    advantages = normalise([total_return(trajectory) for trajectory in members]) if members else None
    if advantages is None:
        return {}
    return {
        transition.key: advantage
        for trajectory, advantage in zip(members, advantages, strict=True)
        for transition in trajectory.transitions
        if transition.trained
    }
