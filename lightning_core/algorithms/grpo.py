"""GRPO: group relative policy optimisation, with the options the field has added to it.

For a sampled token with log-probability `p` under the weights being trained, `o` as recorded when it
was sampled, and advantage A of its transition:

    ratio   r = exp(p - q)                     q = o, or the detached p where `truncation` is set
    trust   w = min(exp(q - o), truncation)    1 where `truncation` is None
    loss    -w * min(r * A, clip(r, 1 - clip_low, 1 + clip_high) * A) + kl * k3

    k3 = exp(s - p) - (s - p) - 1              s under the frozen starting weights

summed over tokens with the weights of `aggregation`, which add up to 1 over the batch:

    "token"     1 / (tokens of the batch)                            DAPO
    "sequence"  1 / (transitions * tokens of the transition)         GRPO as published
    "rollout"   1 / (rollouts * tokens of the rollout)               each rollout once

Sources: Shao et al., DeepSeekMath, arXiv 2402.03300 (GRPO, k3 after Schulman 2020); Yu et al., DAPO,
arXiv 2503.14476 (clip-higher, token mean); Yao et al. 2025 (truncated importance sampling between the
engine that samples and the one that trains). Left out: the length penalty and dynamic re-sampling of DAPO.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lightning_core.algorithms.base import Entries
from lightning_core.errors import ConfigError
from lightning_core.types import Key, Trajectory

if TYPE_CHECKING:
    import torch

Aggregation = Literal["token", "sequence", "rollout"]


@dataclass(frozen=True, slots=True)
class GRPO:
    """Options of GRPO; the defaults are those measured on the shipped example."""

    group_size: int = 8
    """Rollouts of each task that are compared with one another."""
    tasks_per_step: int = 8
    """Tasks of one update; one update is made from group_size * tasks_per_step rollouts."""
    credit: str = "per_agent"
    """Name of the credit method; with one trained agent per_agent and uniform are the same."""
    clip_low: float = 0.2
    clip_high: float = 0.28
    """The clip acts on the ratio to the recorded policy, so only with `truncation=None`."""
    aggregation: Aggregation = "token"
    kl: float = 0.0
    """Weight of the divergence from the starting weights; 0 needs no reference model."""
    truncation: float | None = 2.0
    """Upper bound C of the importance weight between sampling and training; None trusts the ratio itself."""
    epochs: int = 1
    """Passes over each batch. More than one needs `truncation=None`, whose ratio is to the recorded one."""

    def __post_init__(self) -> None:
        checks = {
            "group_size": self.group_size >= 2,
            "tasks_per_step": self.tasks_per_step >= 1,
            "clip_low": 0 < self.clip_low < 1,
            "clip_high": self.clip_high > 0,
            "aggregation": self.aggregation in ("token", "sequence", "rollout"),
            "kl": self.kl >= 0,
            "truncation": self.truncation is None or self.truncation >= 1,
            "epochs": self.epochs >= 1 and (self.epochs == 1 or self.truncation is None),
        }
        if self.truncation is not None and (self.clip_low, self.clip_high) != (0.2, 0.28):
            raise ConfigError(
                f"GRPO's clip_low={self.clip_low!r} and clip_high={self.clip_high!r} would do nothing with "
                f"truncation={self.truncation!r}: set truncation=None to clip the ratio instead"
            )
        for option, holds in checks.items():
            if not holds:
                raise ConfigError(
                    f"GRPO can't use {option}={getattr(self, option)!r}: see its meaning in help(GRPO)"
                )

    @property
    def name(self) -> str:
        return "grpo"

    @property
    def needs_reference(self) -> bool:
        return self.kl > 0

    def weigh(self, trajectories: tuple[Trajectory, ...]) -> dict[Key, float]:
        """The weight of one token of each transition with loss, keyed (rollout_id, call_id, choice)."""
        rollouts = [
            {
                t.key: len(t.completion_ids)
                for t in trajectory.transitions
                if t.trained and t.advantage is not None
            }
            for trajectory in trajectories
        ]
        rollouts = [lengths for lengths in rollouts if sum(lengths.values())]
        tokens = sum(sum(lengths.values()) for lengths in rollouts)
        transitions = sum(len(lengths) for lengths in rollouts)
        return {
            key: {
                "token": 1 / tokens,
                "sequence": 1 / (transitions * max(length, 1)),
                "rollout": 1 / (len(rollouts) * sum(lengths.values())),
            }[self.aggregation]
            for lengths in rollouts
            for key, length in lengths.items()
        }

    def loss(self, entries: Entries) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The formula above over E entries; metrics are weighted sums, so they add up over micro-batches."""
        from lightning_core.algorithms import losses

        anchor = entries.old_logprobs if self.truncation is None else entries.logprobs.detach()
        surrogate, clipped = losses.clipped_surrogate(
            entries.logprobs, anchor, entries.advantages, self.clip_low, self.clip_high
        )
        trust = losses.truncated_weight(anchor, entries.old_logprobs, self.truncation)
        per_token = -trust * surrogate
        metrics = {"clip_share": clipped, "importance_weight": trust}
        if entries.ref_logprobs is not None:
            divergence = losses.k3(entries.logprobs, entries.ref_logprobs)
            per_token = per_token + self.kl * divergence
            metrics["kl_reference"] = divergence.detach()
        weighted = {name: (entries.weights * value).sum() for name, value in metrics.items()}
        return (entries.weights * per_token).sum(), weighted
