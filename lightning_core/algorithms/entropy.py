"""The entropy bonus of a policy gradient: when it acts, and what it adds to a token's advantage.

It adds -weight * o to the advantage of a token, o being its log-probability as recorded. On the policy, in
the mean, its gradient is that of the entropy of the distribution which the token was sampled from,
E[-(log p + 1) grad log p]. Its mean over an agent's tokens is subtracted, a baseline. The bonus is left out
while batches have more entropy, minus the mean of o, than the first ones. Without a bound it can raise the
entropy of long replies without end (Zhang et al., arXiv 2510.10959, who adapt its weight).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING

from lightning_core.records.types import Trajectory

if TYPE_CHECKING:
    import torch

WINDOW = 5
"""Batches over which entropy is averaged: that of one depends on its tasks."""


def with_bonus(advantages: torch.Tensor, logprobs: torch.Tensor, weight: float) -> torch.Tensor:
    """(E,) the advantages with the bonus, from the recorded log-probabilities."""
    return advantages - weight * logprobs if weight else advantages


def measure_entropies(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """The entropy of each trained agent, estimated in nats per token: minus the mean log-probability of its
    sampled tokens; without agents that sampled nothing."""
    sampled: defaultdict[str, list[float]] = defaultdict(list)
    for t in (t for each in trajectories for t in each.transitions if t.trained):
        sampled[t.agent] += t.logprobs
    return {name: -fmean(logprobs) for name, logprobs in sampled.items() if logprobs}


def rise(history: Sequence[Mapping[str, float]]) -> float:
    """Returns the rise of entropy since the first batches, in nats per token: the mean over the agents.

    `history` has the entropy of each agent (`measure_entropies`), batch by batch.
    """
    of_agents: defaultdict[str, list[float]] = defaultdict(list)
    for entropies in history:
        for name, value in entropies.items():
            of_agents[name].append(value)
    rises = [fmean(values[-WINDOW:]) - fmean(values[:WINDOW]) for values in of_agents.values()]
    return fmean(rises) if rises else 0.0


def centred(batch: Sequence[Trajectory], weight: float) -> list[Trajectory]:
    """The batch with every advantage less by the mean of the bonus over its agent's tokens.

    A constant changes nothing in the mean. But all bonuses are above 0, so without it each token that was
    sampled becomes more likely, and only rare ones make up for it. AdamW bounds what these can do: where
    nothing but the bonus acted, a policy lost entropy by it.
    """
    if not weight:
        return list(batch)
    entropies = measure_entropies(batch)
    return [
        replace(
            each,
            transitions=tuple(
                t
                if t.advantage is None or not t.trained
                else replace(t, advantage=t.advantage - weight * entropies.get(t.agent, 0.0))
                for t in each.transitions
            ),
        )
        for each in batch
    ]
