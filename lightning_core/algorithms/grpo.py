"""GRPO: group relative policy optimisation. Returns are normalised within the group: (G - mean) / std.

Shao et al., DeepSeekMath, arXiv 2402.03300. The loss and the options stand in `policy_gradient`.
"""

from __future__ import annotations

from dataclasses import dataclass

from lightning_core.algorithms.policy_gradient import PolicyGradient


@dataclass(frozen=True, slots=True, kw_only=True)
class GRPO(PolicyGradient):
    """The defaults are those measured on the shipped example."""
