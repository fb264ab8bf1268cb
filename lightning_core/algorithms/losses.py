"""Losses as pure functions of tensors, one value per token; all arguments have shape (E,)."""

from __future__ import annotations

import torch
from torch import Tensor


def clipped_surrogate(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, clip_low: float, clip_high: float
) -> tuple[Tensor, Tensor]:
    """(min(r A, clip(r) A), 1.0 where the clip was active) with r = exp(logprobs - old_logprobs).

    Schulman et al., PPO, arXiv 1707.06347, eq. 7, with separate bounds (clip-higher, arXiv 2503.14476).
    """
    ratio = torch.exp(logprobs - old_logprobs)
    plain = ratio * advantages
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    return torch.minimum(plain, clipped), (clipped < plain).to(logprobs.dtype)


def k3(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """Estimate of KL(policy || reference) for a token sampled from the policy; never negative.

    exp(d) - d - 1 with d = ref_logprobs - logprobs (Schulman, "Approximating KL divergence", 2020).
    """
    difference = ref_logprobs - logprobs
    return torch.exp(difference) - difference - 1
