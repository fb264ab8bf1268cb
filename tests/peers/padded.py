"""One random batch in both layouts: the peers' padded (B, T), and this project's flat entries.

A row is one rollout of one call, so a peer's sequence is both a transition and a rollout here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from lightning_core.algorithms.base import Algorithm, Entries
from lightning_core.records.types import Trajectory, Transition

TOLERANCE = 1e-5
"""Relative error allowed everywhere; the numbers are float64."""


@dataclass(frozen=True, slots=True)
class Padded:
    """Rows of `mask.sum(1)` tokens each; numbers outside the mask must not matter."""

    logprobs: torch.Tensor
    """(B, T) with gradient."""
    old: torch.Tensor
    proximal: torch.Tensor
    reference: torch.Tensor
    advantages: torch.Tensor
    """(B,)"""
    mask: torch.Tensor
    """(B, T) float64"""


def make_batch(seed: int, rows: int = 6, longest: int = 9, apart: float = 0.5) -> Padded:
    """Log-probabilities that differ by about `apart`, so that clips act on some tokens and not on others."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    shape = rows, longest
    old = -1.5 + normal(*shape)
    lengths = torch.randint(1, longest + 1, (rows, 1), generator=generator)
    return Padded(
        logprobs=(old + apart * normal(*shape)).requires_grad_(),
        old=old,
        proximal=old + apart * normal(*shape),
        reference=old + apart * normal(*shape),
        advantages=normal(rows),
        mask=(torch.arange(longest) < lengths).double(),
    )


def to_trajectories(batch: Padded) -> list[Trajectory]:
    """Each row as a rollout with an advantage already."""
    lengths = batch.mask.sum(1).long().tolist()
    return [
        Trajectory(
            f"r{row}",
            "g",
            "t",
            0.0,
            (
                Transition(
                    f"r{row}",
                    "c",
                    0,
                    "a",
                    True,
                    [1],
                    [2] * length,
                    [0.0] * length,
                    0,
                    advantage=float(advantage),
                ),
            ),
        )
        for row, (length, advantage) in enumerate(zip(lengths, batch.advantages, strict=True))
    ]


def to_entries(batch: Padded, algorithm: Algorithm) -> Entries:
    """The tokens inside the mask, row by row, with the algorithm's own weights."""
    inside = batch.mask.bool()
    rows = torch.arange(len(inside)).unsqueeze(1).expand_as(inside)[inside]
    weights = algorithm.weigh(to_trajectories(batch))
    shares = torch.tensor([weights[f"r{row}", "c", 0] for row in range(len(inside))], dtype=torch.float64)
    return Entries(
        logprobs=batch.logprobs[inside],
        old_logprobs=batch.old[inside],
        proximal_logprobs=batch.proximal[inside],
        advantages=batch.advantages[rows],
        weights=shares[rows],
        sequences=rows,
        units=torch.full_like(rows, -1),
        ref_logprobs=batch.reference[inside] if algorithm.needs_reference else None,
    )


def assert_same_loss(batch: Padded, algorithm: Algorithm, theirs: torch.Tensor, factor: float = 1.0) -> None:
    """Our loss times `factor`, and its gradient, are theirs."""
    ours, _ = algorithm.loss(to_entries(batch, algorithm))
    torch.testing.assert_close(factor * ours, theirs, rtol=TOLERANCE, atol=1e-12)
    assert_same_gradient(batch, algorithm, theirs, factor)


def assert_same_gradient(
    batch: Padded, algorithm: Algorithm, theirs: torch.Tensor, factor: float = 1.0
) -> None:
    """d loss / d logprobs, (B, T)."""
    ours, _ = algorithm.loss(to_entries(batch, algorithm))
    [mine] = torch.autograd.grad(factor * ours, batch.logprobs)
    [other] = torch.autograd.grad(theirs, batch.logprobs, retain_graph=True)
    torch.testing.assert_close(mine, other, rtol=TOLERANCE, atol=1e-12)


def to_rollouts(rewards: Sequence[float], groups: Sequence[int], calls: Sequence[int]) -> list[Trajectory]:
    """Rollouts of `calls` one-token calls each, not credited yet."""
    return [
        Trajectory(
            f"r{i}",
            f"g{group}",
            "t",
            reward,
            tuple(Transition(f"r{i}", f"c{c}", 0, "a", True, [1], [2], [0.0], 0) for c in range(count)),
        )
        for i, (reward, group, count) in enumerate(zip(rewards, groups, calls, strict=True))
    ]
