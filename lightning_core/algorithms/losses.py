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


def preference(chosen: Tensor, rejected: Tensor, ref_chosen: Tensor, ref_rejected: Tensor) -> Tensor:
    """(P,) how much more than the reference the policy prefers the better side of each pair.

    All arguments have shape (P,): the log-probability of a side of each pair.
    """
    return (chosen - ref_chosen) - (rejected - ref_rejected)


def dpo(
    chosen: Tensor,
    rejected: Tensor,
    ref_chosen: Tensor,
    ref_rejected: Tensor,
    beta: float,
    label_smoothing: float = 0.0,
) -> Tensor:
    """(P,) -log sigmoid(beta * preference), the labels taken to be wrong with probability `label_smoothing`.

    Rafailov et al., arXiv 2305.18290, eq. 7; Mitchell, "A note on DPO with noisy preferences", 2023.
    """
    scaled = beta * preference(chosen, rejected, ref_chosen, ref_rejected)
    right, wrong = torch.nn.functional.logsigmoid(scaled), torch.nn.functional.logsigmoid(-scaled)
    return -(1 - label_smoothing) * right - label_smoothing * wrong


def ipo(chosen: Tensor, rejected: Tensor, ref_chosen: Tensor, ref_rejected: Tensor, beta: float) -> Tensor:
    """(P,) (preference - 1 / (2 beta))^2. Azar et al., arXiv 2310.12036, eq. 17, whose tau is beta."""
    return (preference(chosen, rejected, ref_chosen, ref_rejected) - 1 / (2 * beta)) ** 2
