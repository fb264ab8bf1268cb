"""Turn credit and discounted credit: an agent's calls are compared turn by turn, by what came after them.

`turn` compares an agent's k-th call with the k-th calls of that agent in the other rollouts.

    A(i, k) = G(i, k) - mean of G(j, k) over the other rollouts j that are still alive at turn k

G is the return-to-go along the branch. After verl's RFC 7244: a baseline that normalises turn by turn over
whoever happens to be there is biased where the policy decides how many turns there are, and the mean over the
*others* still alive is not. A rollout alone at a turn is compared with the whole returns of the other
rollouts, which is unbiased too; without a comparison, long rollouts would be learnt from less.

It assumes that a reward about a call is owed to that call and to those that it goes on from: not to calls of
other conversations, nor to later ones that it was given for. That equal turns are comparable need not be
assumed: where they are not, the baseline is only less good. A call is an agent's k-th by the order in which
calls began, so parallel calls may change places: that is noise, not bias.

`Discounted` is the same with a discount for each turn: what came after a call, the nearer the more.

    G(i, t) = discount^(turns from t to the end) * R_i + sum over later turns u of discount^(u - t) * r_u

with t itself among the u, not compared by whole rollouts: early
turns have lower returns than late ones in every rollout. "Later" means further down the same branch of
tokens, never by time: what a parallel branch earns stays there. Return-to-go is the policy gradient
theorem's (Sutton et al. 1999); a discount over turns instead of tokens is ArCHer's (Zhou et al., arXiv
2402.19446).

It assumes that near rewards are more a call's doing than far ones, and what `turn` assumes. With discount 1
it is `turn`, and unbiased if the rest holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lightning_core.credit.base import Comparison, parts_of, parts_to_go, peers_by, turn_numbers, with_others
from lightning_core.credit.branches import returns_to_go
from lightning_core.ranges import check_range
from lightning_core.records.types import Trajectory


@dataclass(frozen=True, slots=True)
class Discounted:
    """Return-to-go along the branch."""

    discount: float = 0.95
    """Worth of a reward one turn earlier."""

    def __post_init__(self) -> None:
        check_range("discount", self.discount, of="Discounted", least=0, most=1)

    def __call__(self, group: Sequence[Trajectory]) -> list[Comparison]:
        """One comparison for each trained agent and turn."""
        returns = {k: g for each in group for k, g in returns_to_go(each, self.discount).items()}
        turns = {key: k for each in group for key, k in turn_numbers(each).items()}
        sorted_out = peers_by(lambda t: (t.agent, turns[t.key]), group, returns)
        parts = parts_of(group, lambda trajectory, t: parts_to_go(trajectory, t, self.discount))
        return [with_others(peers, group, agent, parts) for (agent, _), peers in sorted_out.items()]


turn = Discounted(discount=1.0)
"""One comparison for each trained agent and turn."""
