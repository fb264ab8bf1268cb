"""Losses as pure functions of tensors, one value per token; all arguments have shape (E,)."""

from __future__ import annotations

import torch
from torch import Tensor


def clipped_surrogate(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> tuple[Tensor, Tensor]:
    """(min(r A, clip(r) A), 1.0 where a clip was active) with r = exp(logprobs - old_logprobs).

    Schulman et al., PPO, arXiv 1707.06347, eq. 7, with separate bounds (clip-higher, arXiv 2503.14476). With
    `dual_clip` it is no less than dual_clip * A where A < 0: Ye et al., arXiv 1912.09729, eq. 5.
    """
    ratio = torch.exp(logprobs - old_logprobs)
    plain = ratio * advantages
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    surrogate, active = torch.minimum(plain, clipped), clipped < plain
    if dual_clip is not None:
        least = torch.where(advantages < 0, dual_clip * advantages, surrogate)
        surrogate, active = torch.maximum(surrogate, least), active | (least > surrogate)
    return surrogate, active.to(logprobs.dtype)


def clipped_weight(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    clip_low: float,
    clip_high: float,
) -> tuple[Tensor, Tensor]:
    """(clip(r) A logprobs, 1.0 where the clip was active); the clipped ratio is a weight without gradient.

    CISPO: MiniMax-M1, arXiv 2506.13585, eq. 4. No token's gradient is lost to the clip, only shortened.
    """
    ratio = torch.exp(logprobs - old_logprobs).detach()
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    return clipped * advantages * logprobs, (clipped != ratio).to(logprobs.dtype)


def sequence_anchor(logprobs: Tensor, old_logprobs: Tensor, sequences: Tensor) -> Tensor:
    """Returns the anchor of a token's ratio: with it the value is the sequence's, and the gradient the
    token's own.

    exp(logprobs - anchor) = s * exp(logprobs - sg(logprobs)), with s = exp(mean over the sequence of
    sg(logprobs - old_logprobs)): GSPO-token, arXiv 2507.18071, eq. 14. All of a sequence must be here.
    """
    gaps = (logprobs - old_logprobs).detach()
    mean = sequence_sums(gaps, sequences) / sequence_sums(torch.ones_like(gaps), sequences)
    return logprobs.detach() - mean


def k1(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """Estimate of KL(policy || reference) for a token sampled from the policy; unbiased.

    -d with d = ref_logprobs - logprobs, as in k2 and k3 (Schulman, "Approximating KL divergence", 2020).
    """
    return logprobs - ref_logprobs


def k2(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """The same by d^2 / 2: biased, but its gradient is that of the divergence, in the mean."""
    return (logprobs - ref_logprobs) ** 2 / 2


def k3(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """The same by exp(d) - d - 1: unbiased and never negative. Its gradient is that of KL(ref || policy)."""
    difference = ref_logprobs - logprobs
    return torch.exp(difference) - difference - 1


def sequence_sums(values: Tensor, sequences: Tensor) -> Tensor:
    """For each token the sum over its sequence. All of a sequence must be here."""
    return torch.zeros_like(values).index_add_(0, sequences, values)[sequences]  # at most E sequences


def value_loss(values: Tensor, targets: Tensor) -> Tensor:
    """Half the squared error of each value.

    Without the bound about the old value of OpenAI Baselines' `ppo2` (2017), which is no part of the paper
    and was found to help little by Andrychowicz et al., arXiv 2006.05990.
    """
    return 0.5 * (values - targets) ** 2


def preference(chosen: Tensor, rejected: Tensor, ref_chosen: Tensor, ref_rejected: Tensor) -> Tensor:
    """(P,) how much more than the reference the policy prefers the better side of each pair.

    All arguments have shape (P,): the log-probability of a side of each pair.
    """
    return (chosen - ref_chosen) - (rejected - ref_rejected)


def dpo(chosen: Tensor, rejected: Tensor, ref_chosen: Tensor, ref_rejected: Tensor, beta: float) -> Tensor:
    """(P,) -log sigmoid(beta * preference). Rafailov et al., arXiv 2305.18290, eq. 7."""
    return -torch.nn.functional.logsigmoid(beta * preference(chosen, rejected, ref_chosen, ref_rejected))


def ipo(chosen: Tensor, rejected: Tensor, ref_chosen: Tensor, ref_rejected: Tensor, beta: float) -> Tensor:
    """(P,) (preference - 1 / (2 beta))^2. Azar et al., arXiv 2310.12036, eq. 17, whose tau is beta."""
    return (preference(chosen, rejected, ref_chosen, ref_rejected) - 1 / (2 * beta)) ** 2
