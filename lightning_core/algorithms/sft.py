"""SFT: supervised fine-tuning, the negative log-likelihood of replies that are to be imitated.

    loss = -(1 / tokens) * sum of log p(token)          over all tokens of the batch's kept replies

Where the replies come from:

- rejection sampling: the policy learns from its own best replies. For each trained agent the rollouts with
  the best final reward of the group are kept, unless all final rewards are equal: RAFT's best of n (Dong et
  al., arXiv 2304.06767), and with rewards of 0 and 1 all that are right, as in STaR (Zelikman et al., arXiv
  2203.14465) and RFT (Yuan et al., arXiv 2308.01825). Of those that end equally well, only the ones with the
  best return are: intermediate rewards choose among successes, and never make a success of a failure. Or all
  whose return is at least `least_return`. A lucky one is imitated with its mistakes.
- `demonstrations`: requests with the reply to give, from any source. Their tokens are those of the model's
  own chat template and tokenizer, the stop token included; only the reply carries loss. No rollouts are asked
  for. Every pass over the demonstrations has an order of its own, which follows from the trainer's seed.

Source: Ouyang et al., InstructGPT, arXiv 2203.02155, step 1; the token mean is TRL's. Left out: packing
several demonstrations into one sequence (the token tree does without), loss on prompts, and duplicates, which
are neither looked for nor removed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from lightning_core.algorithms.base import (
    Demonstrations,
    Entries,
    RolloutAlgorithm,
    check_options,
    is_changed,
)
from lightning_core.credit.base import EPSILON, Baseline, Comparison, Credit, Peer, Scale
from lightning_core.errors import ConfigError, TaskError
from lightning_core.experience.returns import total_return
from lightning_core.ranges import check_range
from lightning_core.records.types import Demonstration, Key, Trajectory

if TYPE_CHECKING:
    import torch

OF_ROLLOUTS = ("group_size", "tasks_per_step", "least_return", "staleness", "replay", "dynamic_sampling")


@dataclass(frozen=True, slots=True, kw_only=True)
class SFT(RolloutAlgorithm):
    """The defaults are those measured on the shipped example."""

    demonstrations: Sequence[Demonstration | Mapping[str, Any]] | None = field(default=None, repr=False)
    """Demonstrations to imitate, as `Demonstration`s or dicts with their fields. None: the best of its own
    rollouts."""
    batch_size: int = 32
    """Demonstrations of one update."""
    least_return: float | None = None
    """Keep the rollouts with at least this return. None: the best of each group, unless all end alike."""

    def __post_init__(self) -> None:
        check_options(self)
        if self.least_return is not None:
            check_range("least_return", self.least_return, of="SFT")
        idle = ("batch_size",) if self.demonstrations is None else OF_ROLLOUTS
        for name in idle:
            if is_changed(self, name):
                where = "without" if self.demonstrations is None else "with"
                raise ConfigError(f"SFT has no use for {name} {where} demonstrations: leave it out")
        if self.demonstrations is None:
            if self.group_size == 1 and self.least_return is None:
                raise ConfigError("SFT(group_size=1) has nothing to choose from: give least_return")
        elif not self.demonstrations:
            raise ConfigError("SFT(demonstrations=[]) teaches nothing: give at least one, or leave it out")
        else:
            read = tuple(_read(index, row) for index, row in enumerate(self.demonstrations))
            object.__setattr__(self, "demonstrations", read)

    @property
    def credit(self) -> Credit:
        return Best(self.least_return) if self.demonstrations is None else everything

    @property
    def baseline(self) -> Baseline:
        return "none"

    @property
    def scale(self) -> Scale:
        return "none"

    @property
    def learns_from(self) -> Demonstrations | None:
        if self.demonstrations is None:
            return None
        return Demonstrations(
            tuple(each for each in self.demonstrations if isinstance(each, Demonstration)), self.batch_size
        )

    def weigh(self, trajectories: Sequence[Trajectory]) -> dict[Key, float]:
        """1 / (tokens to imitate), for every reply that is kept."""
        lengths = {
            t.key: len(t.completion_ids)
            for each in trajectories
            for t in each.transitions
            if t.trained and t.advantage is not None
        }
        return dict.fromkeys(lengths, 1 / max(sum(lengths.values()), 1))

    def loss(self, entries: Entries) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The formula above over E entries; there is nothing else to say of them."""
        return -(entries.weights * entries.logprobs).sum(), {}


def _read(index: int, row: Demonstration | Mapping[str, Any]) -> Demonstration:
    if isinstance(row, Demonstration):
        return row
    if not isinstance(row, Mapping):
        raise TaskError(f"demonstration {index} is a {type(row).__name__}; give a Demonstration or a dict")
    try:
        return Demonstration.model_validate(dict(row))
    except ValidationError as problem:
        raise TaskError(f"demonstration {index} can't be used: {problem}") from None


@dataclass(frozen=True, slots=True)
class Best:
    """Which rollouts of a group are good enough to be imitated, as above: their calls have advantage 1."""

    least_return: float | None = None
    """Keep every rollout with at least this return. None: the best of the group."""

    def __call__(self, group: Sequence[Trajectory]) -> list[Comparison]:
        agents = sorted({t.agent for each in group for t in each.transitions if t.trained})
        return [Comparison(self._kept(group, agent), baseline=False) for agent in agents]

    def _kept(self, group: Sequence[Trajectory], agent: str) -> tuple[Peer, ...]:
        acted = [each for each in group if _replies(each, agent)]
        if self.least_return is None:
            kept = _best(acted, agent)
        else:
            kept = [each for each in acted if total_return(each, agent) >= self.least_return - EPSILON]
        return tuple(_replies(each, agent) for each in kept)


def _best(acted: Sequence[Trajectory], agent: str) -> list[Trajectory]:
    """Returns the trajectories with the best return among those with the best final reward; none if all end
    alike."""
    finals = [each.final(agent) for each in acted]
    if max(finals) - min(finals) <= EPSILON:
        return []
    ended_best = [each for each in acted if each.final(agent) >= max(finals) - EPSILON]
    most = max(total_return(each, agent) for each in ended_best)
    return [each for each in ended_best if total_return(each, agent) >= most - EPSILON]


def _replies(trajectory: Trajectory, agent: str) -> Peer:
    return {t.key: 1.0 for t in trajectory.transitions if t.trained and t.agent == agent}


def everything(group: Sequence[Trajectory]) -> list[Comparison]:
    """Every trained call is to be imitated: what is given as a demonstration."""
    return [
        Comparison(
            tuple({t.key: 1.0 for t in each.transitions if t.trained} for each in group), baseline=False
        )
    ]
