"""GRPO: group relative policy optimisation. Rollouts are compared within their group: (G - mean) / std.

Shao et al., DeepSeekMath, arXiv 2402.03300. The loss and the options stand in `policy_gradient`. As published
every call gets its rollout's return, `credit="uniform"`; by default it gets what it had to do with it.
"""

from __future__ import annotations

from dataclasses import dataclass

from lightning_core.algorithms.policy_gradient import PolicyGradient
from lightning_core.credit.base import Credit


@dataclass(frozen=True, slots=True, kw_only=True)
class GRPO(PolicyGradient):
    """The defaults are those measured on the shipped example and where the truth about credit is known."""

    credit: str | Credit = "relevance"
    """A credit method or the name of one."""
