"""Corrections for tokens that other weights have sampled: importance weights between two policies.

With o the log-probability as recorded and q that under the weights when the update began, a token's plain
importance weight is exp(q - o). It is unbiased, and of unbounded variance; each correction bounds it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from lightning_core.ranges import check_range

if TYPE_CHECKING:
    import torch


class Correction(Protocol):
    """Weighs each token by how likely it still is."""

    def weigh(self, proximal: torch.Tensor, recorded: torch.Tensor) -> torch.Tensor:
        """(E,) weight of each token, without gradient, from two log-probabilities of shape (E,)."""


@dataclass(frozen=True, slots=True)
class Truncated:
    """min(exp(q - o), bound): truncated importance sampling (Yao et al. 2025, "Your efficient RL framework
    secretly brings you off-policy RL training"; Espeholt et al., IMPALA, arXiv 1802.01561)."""

    bound: float = 2.0

    def __post_init__(self) -> None:
        check_range("bound", self.bound, of="Truncated", least=1)  # the weight on-policy

    def weigh(self, proximal: torch.Tensor, recorded: torch.Tensor) -> torch.Tensor:
        """The formula above."""
        return (proximal - recorded).exp().clamp(max=self.bound).detach()


@dataclass(frozen=True, slots=True)
class Masked:
    """exp(q - o) inside [low, high], else 0: the token is left out (IcePop, Ling team, 2025)."""

    low: float = 0.5
    high: float = 2.0

    def __post_init__(self) -> None:
        check_range("low", self.low, of="Masked", least=0, below=1)
        check_range("high", self.high, of="Masked", above=1)

    def weigh(self, proximal: torch.Tensor, recorded: torch.Tensor) -> torch.Tensor:
        """The formula above."""
        ratio = (proximal - recorded).exp().detach()
        return ratio * ((ratio >= self.low) & (ratio <= self.high))
