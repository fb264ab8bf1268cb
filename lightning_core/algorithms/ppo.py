"""PPO: the clipped policy gradient with a critic, whose estimate of each state stands in for the group.

    A(t) = GAE(lambda) over the turns of a branch, with V before each reply      credit "gae"
    shifted to mean 0 and divided to deviation 1 over the batch                  scale "batch"
    V fitted to A + V by mean squared error                                      `Critic`

Schulman et al., PPO, arXiv 1707.06347; GAE, arXiv 1506.02438. One action is one whole reply, as in Turn-PPO
(Li et al., arXiv 2512.17008), and so V is read once for each reply, not at every token. As nothing is
compared within a group, one rollout of a task is enough, and many tasks teach the critic more. Left out:
weights shared between policy and critic. The loss and the other options stand in `policy_gradient`.
"""

from __future__ import annotations

from dataclasses import dataclass

from lightning_core.algorithms.base import Critic
from lightning_core.algorithms.corrections import Correction
from lightning_core.algorithms.policy_gradient import PolicyGradient
from lightning_core.credit.base import Baseline, Credit, Scale


@dataclass(frozen=True, slots=True, kw_only=True)
class PPO(PolicyGradient):
    """The defaults are those measured on the shipped example."""

    group_size: int = 1
    tasks_per_step: int = 64
    credit: str | Credit = "gae"
    """A credit method that uses the critic's values, or the name of one."""
    critic: Critic = Critic()  # noqa: RUF009
    baseline: Baseline = "none"
    scale: Scale = "batch"
    clip: float | tuple[float, ...] = 0.2
    correction: Correction | None = None
    epochs: int = 2
