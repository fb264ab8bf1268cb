"""The algorithm's contract: how credited transitions become a loss.

An algorithm is a frozen dataclass of options with one pure function of tensors. Everything is
flat over loss entries: one entry is one sampled token of one trained transition (E entries in a
micro-batch). Micro-batches add up, so the loss of a batch is the plain sum of theirs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from lightning_core.types import Key, Trajectory

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Entries:
    """The loss entries of a micro-batch, one row per sampled token."""

    logprobs: torch.Tensor
    """(E,) under the weights being trained, with gradient."""
    old_logprobs: torch.Tensor
    """(E,) as recorded when the token was sampled."""
    advantages: torch.Tensor
    """(E,) of the transition the token belongs to."""
    weights: torch.Tensor
    """(E,) the share of each token in the batch's loss; they add up to 1 over the whole batch."""
    sequences: torch.Tensor
    """(E,) int64: which transition of the micro-batch a token belongs to, counted from 0."""
    ref_logprobs: torch.Tensor | None = None
    """(E,) under the frozen starting weights, if `needs_reference`."""


class Algorithm(Protocol):
    """GRPO and its kin."""

    @property
    def name(self) -> str: ...
    @property
    def group_size(self) -> int:
        """Rollouts of one task that are compared with one another."""

    @property
    def tasks_per_step(self) -> int:
        """Tasks of one update, `group_size` rollouts each."""

    @property
    def credit(self) -> str:
        """Name of the credit method."""

    @property
    def needs_reference(self) -> bool:
        """Whether `ref_logprobs` must be given."""

    @property
    def epochs(self) -> int:
        """Passes over each batch."""

    def weigh(self, trajectories: tuple[Trajectory, ...]) -> dict[Key, float]:
        """The weight of one token of each trained transition, keyed (rollout_id, call_id, choice)."""

    def loss(self, entries: Entries) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """(scalar loss, metrics as weighted sums over the micro-batch)."""
