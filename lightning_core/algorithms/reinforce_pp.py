"""REINFORCE++: returns are normalised over the whole batch, not within a group.

    A_i = (G_i - mean of G) / std of G          over all rollouts of the batch, each counted once

One rollout of each task is enough, so a batch holds as many tasks as rollouts. With baseline="mean" and
groups of two or more it is REINFORCE++-baseline: the group's mean is taken off first, which is better where
tasks differ in difficulty or several agents are trained. Groups of equal returns carry no loss, and count
with 0 in the mean and the deviation, as in the paper's batch. Hu et al., arXiv 2501.03262.

A return is that of the whole rollout, or what the credit method makes of it: a call gets the reward that
comes after later observations too. The KL penalty inside the reward: `kl=(0.01, "k1")`, which is not
normalised with it.
"""

from __future__ import annotations

from dataclasses import dataclass

from lightning_core.algorithms.policy_gradient import PolicyGradient
from lightning_core.credit.base import Baseline, Scale


@dataclass(frozen=True, slots=True, kw_only=True)
class ReinforcePP(PolicyGradient):
    """The loss and the options stand in `policy_gradient`."""

    group_size: int = 1
    tasks_per_step: int = 64
    baseline: Baseline = "none"
    scale: Scale = "batch"
    clip: float | tuple[float, ...] = 0.2
    """As in the paper; it acts with `epochs=2` or more, or without a correction."""

    @property
    def name(self) -> str:
        return "reinforce++"
