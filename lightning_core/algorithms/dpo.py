"""DPO: direct preference optimisation, from pairs within a group of rollouts.

Of a pair, c is the better side and r the worse one: an agent's replies in a rollout. With log-probabilities p
under the weights being trained and s under the frozen start, summed over the tokens that the policy sampled
in a side:

    h       = (p_c - s_c) - (p_r - s_r)
    loss    = -log sigmoid(beta * h)                                                   "sigmoid"
    loss    = (h - 1 / (2 * beta)) ** 2                                                "ipo"

as the mean over the pairs of the batch; every pair counts once. With "sigmoid_norm" and "ipo" the sums are
means, so that a long side does not count for more, as in TRL; the paper of IPO has sums.

As every update has fresh rollouts, this is DPO made iterative and on-policy (Xu et al., arXiv
2312.16682; Guo et al., arXiv 2402.04792); the reference stays what it was at the start of the phase.

Pairs are the best rollout of a group beside its worst, the second best beside the second worst, and so on.
Each trained agent is paired with itself: over the rollouts of the group in which it acted, by the final
reward that it got there, and among equals by the return; a side is all of its replies in the rollout. A
rollout is in at most one pair of an agent. A pair whose final rewards differ by no more than `margin` is not
made, however different the intermediate rewards; what is in no pair carries no loss.

Why whole rollouts and not single turns: what a group ends with is a reward of the rollout, and two rollouts
seldom have a later turn with the same prompt. It is the pair of ETO (Song et al., arXiv 2403.02502) and of
multi-turn DPO (Shi et al., DMPO, arXiv 2406.14868). With one trained agent the sum over all turns is what
DPO's derivation holds for, if the environment is deterministic, as both sides begin in the same state and
everything else cancels (Rafailov et al., "From r to Q*", arXiv 2404.12358).

Why within an agent: one that is called when things went wrong is on the worse side of most pairs of whole
rollouts, and would be taught to say less of anything (see `per_agent`). Of the calls of the SQL example's
rewriter that came into pairs, 76 % were on the worse side so, and 59 % when paired by agent. The price: the
two sides of such an agent may begin in different states, whose values do not cancel.

Sources: Rafailov et al., DPO, arXiv 2305.18290, eq. 7; Azar et al., IPO, arXiv 2310.12036, eq. 17. Left out:
pairs of single turns, DMPO's weights for the length of a rollout, the variants without a reference (SimPO,
ORPO), a term for the likelihood of the better side, and smoothed labels (Mitchell, "A note on DPO with noisy
preferences", 2023).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from lightning_core.algorithms.base import Entries, RolloutAlgorithm, check_options
from lightning_core.credit.base import EPSILON, Baseline, Comparison, Scale, group_by_id
from lightning_core.credit.branches import without_dropped
from lightning_core.experience.returns import total_return
from lightning_core.ranges import check_choice, check_range
from lightning_core.records.types import Key, Trajectory

LossType = Literal["sigmoid", "sigmoid_norm", "ipo"]

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class DPO(RolloutAlgorithm):
    """A group gives at most half as many pairs as it has rollouts; `dynamic_sampling` replaces groups without
    a pair. The defaults are those measured on the shipped example."""

    beta: float = 0.1
    """How closely the policy is held to the reference; smaller lets it move further."""
    loss_type: LossType = "sigmoid"
    """The loss, by TRL's names. "sigmoid_norm" and "ipo" take means over a side's tokens in place of sums.
    Means are smaller: choose a larger beta."""
    margin: float = 0.0
    """Rollouts are a pair if their final rewards differ by more than this."""

    def __post_init__(self) -> None:
        check_options(self)
        check_choice("loss_type", self.loss_type, get_args(LossType), of="DPO")
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
        if self.loss_type != "sigmoid":
            now, start = now / tokens, start / tokens
        sides = now[:, 1], now[:, 0], start[:, 1], start[:, 0]
        per_pair = (losses.ipo if self.loss_type == "ipo" else losses.dpo)(*sides, self.beta)
        margin = (self.beta * losses.preference(*sides)).detach()
        metrics = {"pair_accuracy": (margin > 0).to(margin.dtype), "pair_margin": margin}
        return (shares * per_pair).sum(), {name: (shares * value).sum() for name, value in metrics.items()}


@dataclass(frozen=True, slots=True)
class Pair:
    """The replies of an agent in a better and in a worse rollout."""

    chosen: tuple[Key, ...]
    rejected: tuple[Key, ...]


@dataclass(frozen=True, slots=True)
class Pairs:
    """DPO's credit: 1 for every call of the better side of a pair, -1 for every call of the worse one."""

    margin: float = 0.0
    """Final rewards that differ by no more say nothing about which is better."""

    def __call__(self, group: Sequence[Trajectory]) -> list[Comparison]:
        return [
            Comparison((dict.fromkeys(pair.chosen, 1.0), dict.fromkeys(pair.rejected, -1.0)), baseline=False)
            for pair in pair_up(group, self.margin)
        ]


def pair_up(trajectories: Iterable[Trajectory], margin: float = 0.0) -> list[Pair]:
    """The pairs of each group, agent by agent; what is equal keeps the order of the rollouts."""
    pairs: list[Pair] = []
    for group in group_by_id(map(without_dropped, trajectories)).values():
        for agent in sorted({t.agent for each in group for t in each.transitions if t.trained}):
            acted = [each for each in group if _replies(each, agent)]
            ranked = sorted(acted, key=lambda each: (-each.final(agent), -total_return(each, agent)))
            for best, worst in zip(ranked, reversed(ranked), strict=True):
                if best.final(agent) - worst.final(agent) <= max(margin, EPSILON):
                    break
                pairs.append(Pair(_replies(best, agent), _replies(worst, agent)))
    return pairs


def _replies(trajectory: Trajectory, agent: str) -> tuple[Key, ...]:
    return tuple(
        t.key for t in trajectory.transitions if t.trained and t.agent == agent and len(t.completion_ids)
    )
