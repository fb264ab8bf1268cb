"""RLOO: REINFORCE with a leave-one-out baseline.

    A_i = G_i - mean of G_j over the other rollouts j of the group          no scale

A rollout's own return is no part of its baseline, so the gradient is unbiased; with n rollouts it is
n / (n - 1) times that of the group's mean. Ahmadian et al., "Back to basics", arXiv 2402.14740.

The paper sums log-probabilities over a reply. The token mean of `policy_gradient` divides that sum by the
same number for all tokens of a batch, which keeps its direction. Its KL penalty
inside the reward: `kl=(0.01, "k1")`, without its baseline.
"""

from __future__ import annotations

from dataclasses import dataclass

from lightning_core.algorithms.policy_gradient import PolicyGradient
from lightning_core.credit.base import Baseline, Scale


@dataclass(frozen=True, slots=True, kw_only=True)
class RLOO(PolicyGradient):
    """The loss and the options stand in `policy_gradient`."""

    baseline: Baseline = "leave_one_out"
    scale: Scale = "none"
