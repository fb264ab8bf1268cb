"""Low-rank adapters, and the learning rate that suits a model's size: the same for every backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from lightning_core.errors import ConfigError
from lightning_core.ranges import check_range

SMALL: Final = 10_000_000
"""Parameters below which a model is small."""


@dataclass(frozen=True, slots=True)
class LoraOptions:
    """Train low-rank adapters beside frozen weights (Hu et al., arXiv 2106.09685)."""

    rank: int = 16
    alpha: float = 32.0
    """The adapters' product is scaled by alpha / rank."""
    targets: tuple[str, ...] | str = "all-linear"
    """Names of the linear layers that get one; by default all but the output layer."""

    def __post_init__(self) -> None:
        check_range("rank", self.rank, of="LoraOptions", least=1, whole=True)
        check_range("alpha", self.alpha, of="LoraOptions", above=0, most=1e6)


def check_adamw(
    *,
    learning_rate: float | None,
    betas: Sequence[float],
    weight_decay: float,
    warmup_steps: int,
    max_grad_norm: float,
) -> None:
    """Raise ConfigError for options with which a step of AdamW might lose the weights.

    Within these ranges a finite gradient makes a finite step in 32 bits: with a norm of at most 1e12, both
    moments stay below 1e24, a step below rate * 1e12 / 1e-8 = 1e20, and decay takes no more than all of a
    weight.
    """
    if learning_rate is not None:
        check_range("learning_rate", learning_rate, above=0, most=1)
    check_range("weight_decay", weight_decay, least=0, most=1)
    check_range("warmup_steps", warmup_steps, least=0, whole=True)
    check_range("max_grad_norm", max_grad_norm, above=0, most=1e12)
    if not isinstance(betas, Sequence) or len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
        raise ConfigError(f"betas={betas!r}: give two finite numbers at least 0 and below 1")


def default_learning_rate(parameters: int, lora: LoraOptions | None) -> float:
    """A starting point, not a law: 4e-4 below 10 M parameters (measured on 1 to 2 M), else the 1e-6 that is
    usual for GRPO on full weights and 1e-5 for LoRA."""
    if parameters < SMALL:
        return 4e-4
    return 1e-6 if lora is None else 1e-5
