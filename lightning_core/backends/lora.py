"""Low-rank adapters, and the learning rate that suits a model's size: the same for every backend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

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


def default_learning_rate(parameters: int, lora: LoraOptions | None) -> float:
    """A starting point, not a law: 4e-4 below 10 M parameters (measured on 1 to 2 M), else the 1e-6 that is
    usual for GRPO on full weights and 1e-5 for LoRA."""
    if parameters < SMALL:
        return 4e-4
    return 1e-6 if lora is None else 1e-5
