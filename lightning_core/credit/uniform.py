"""Uniform credit: every call of a rollout gets the rollout's own return, compared with the group's.

    G(i, t) = R_i + sum of r_i          for every trained transition t of rollout i

This is LightningRL's identical assignment (Luo et al., Agent Lightning, arXiv 2508.03680, section 3.3) with
GRPO's group baseline (Shao et al., DeepSeekMath, arXiv 2402.03300, section 4.1).

Assumes that all calls are equally responsible for the outcome.
"""

from __future__ import annotations

from collections.abc import Sequence

from lightning_core.credit.base import Comparison, parts_of, total_parts, total_return
from lightning_core.types import Trajectory


def uniform(group: Sequence[Trajectory]) -> list[Comparison]:
    """One comparison: all rollouts with a trained call, by their whole return."""
    return [
        Comparison(
            tuple(
                {t.key: total_return(trajectory, t.agent) for t in trajectory.transitions if t.trained}
                for trajectory in group
            ),
            parts=parts_of(group, lambda trajectory, t: total_parts(trajectory, t.agent)),
        )
    ]
