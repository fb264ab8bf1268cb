"""DPO: direct preference optimisation, from pairs within a group of rollouts.

Of a pair, c is the better side and r the worse one (see `credit.pairs`: an agent's replies in a rollout).
With log-probabilities p under the weights being trained and s under the frozen start, summed over the tokens
that the policy sampled in a side:

    h       = (p_c - s_c) - (p_r - s_r)
    loss    = -log sigmoid(beta * h)                                                   "sigmoid"
              -(1 - label_smoothing) * log sigmoid(beta * h) - label_smoothing * log sigmoid(-beta * h)
    loss    = (h - 1 / (2 * beta)) ** 2                                                "ipo"

as the mean over the pairs of the batch; every pair counts once. With `length_normalised` the sums are means,
so that a long side does not count for more; the paper of IPO has sums, TRL means.

As every update has fresh rollouts, this is DPO made iterative and on-policy (Xu et al., arXiv
2312.16682; Guo et al., arXiv 2402.04792); the reference stays what it was at the start of the phase.

Sources: Rafailov et al., DPO, arXiv 2305.18290, eq. 7; Azar et al., IPO, arXiv 2310.12036, eq. 17; label
smoothing: Mitchell, "A note on DPO with noisy preferences", 2023. Left out: the variants without a reference
(SimPO, ORPO), and a term for the likelihood of the better side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lightning_core.algorithms.base import Entries, RolloutAlgorithm, check_options
from lightning_core.credit.base import Baseline, Scale
from lightning_core.credit.pairs import Pairs, pair_up
from lightning_core.ranges import check_range
from lightning_core.types import Key, Trajectory

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class DPO(RolloutAlgorithm):
    """A group gives at most half as many pairs as it has rollouts; `dynamic_sampling` replaces groups without
    a pair. The defaults are those measured on the shipped example."""

    beta: float = 0.1
    """How closely the policy is held to the reference; smaller lets it move further."""
    loss_type: Literal["sigmoid", "ipo"] = "sigmoid"
    label_smoothing: float = 0.0
    """The share of pairs that are taken to be the wrong way round; of "sigmoid" only."""
    length_normalised: bool = False
    """Means over a side's tokens in place of sums. Means are smaller: choose a larger beta."""
    margin: float = 0.0
    """Rollouts are a pair if their final rewards differ by more than this."""

    def __post_init__(self) -> None:
        check_range("label_smoothing", self.label_smoothing, of="DPO", least=0, below=0.5)
        check_options(
            self,
            loss_type=self.loss_type in ("sigmoid", "ipo"),
            label_smoothing=not (self.label_smoothing and self.loss_type == "ipo"),
        )
        check_range("group_size", self.group_size, of="DPO", least=2, whole=True)
        check_range("beta", self.beta, of="DPO", above=0, most=1e9)
        check_range("margin", self.margin, of="DPO", least=0)

    @property
    def credit(self) -> Pairs:
        return Pairs(self.margin)

    @property
    def baseline(self) -> Baseline:
        return "none"

    @property
    def scale(self) -> Scale:
        return "none"

    @property
    def needs_reference(self) -> bool:
        return True

    def weigh(self, trajectories: Sequence[Trajectory]) -> dict[Key, float]:
        """The share of its pair in the batch, for every reply of the pair."""
        units = self.units(trajectories)
        pairs = len(set(units.values()))
        return dict.fromkeys(units, 1 / max(pairs, 1))

    def units(self, trajectories: Sequence[Trajectory]) -> dict[Key, int]:
        """The number of its pair, for every reply of a pair."""
        return {
            key: number
            for number, pair in enumerate(pair_up(trajectories, self.margin))
            for key in (*pair.chosen, *pair.rejected)
        }

    def loss(self, entries: Entries) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The formula above over the pairs of E entries. Metrics are means over the batch's pairs: the share
        that the policy has the right way round, compared with the reference, and beta * h."""
        import torch

        from lightning_core.algorithms import losses

        assert entries.ref_logprobs is not None
        numbers, pair = torch.unique(entries.units, return_inverse=True)
        side = 2 * pair + (entries.advantages > 0)  # (E,) of a pair the worse side, then the better

        def add_up(values: torch.Tensor) -> torch.Tensor:  # (E,) -> (P, 2)
            return values.new_zeros(2 * len(numbers)).index_add(0, side, values).view(-1, 2)

        tokens = add_up(torch.ones_like(entries.weights))
        shares = add_up(entries.weights).sum(1) / tokens.sum(1)
        now, start = add_up(entries.logprobs), add_up(entries.ref_logprobs)
        if self.length_normalised:
            now, start = now / tokens, start / tokens
        sides = now[:, 1], now[:, 0], start[:, 1], start[:, 0]
        if self.loss_type == "ipo":
            per_pair = losses.ipo(*sides, self.beta)
        else:
            per_pair = losses.dpo(*sides, self.beta, self.label_smoothing)
        margin = (self.beta * losses.preference(*sides)).detach()
        metrics = {"pair_accuracy": (margin > 0).to(margin.dtype), "pair_margin": margin}
        return (shares * per_pair).sum(), {name: (shares * value).sum() for name, value in metrics.items()}
