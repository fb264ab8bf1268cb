"""Turn credit: an agent's k-th call is compared with the k-th calls of that agent in the other rollouts.

    A(i, k) = G(i, k) - mean of G(j, k) over the other rollouts j that are still alive at turn k

G is the return-to-go along the branch. After verl's RFC 7244: a baseline that normalises turn by turn over
whoever happens to be there is biased where the policy decides how many turns there are, and the mean over the
*others* still alive is not. A rollout alone at a turn is compared with the whole returns of the other
rollouts, which is unbiased too; without a comparison, long rollouts would be learnt from less.

Assumes that a reward about a call is owed to that call and to those that it goes on from: not to calls of
other conversations, nor to later ones that it was given for. That equal turns are comparable need not be
assumed: where they are not, the baseline is only less good. A call is an agent's k-th by the order in which
calls began, so parallel calls may change places: that is noise, not bias.
"""

from __future__ import annotations

from collections.abc import Sequence

from lightning_core.credit.base import Comparison
from lightning_core.credit.discounted import Discounted
from lightning_core.types import Trajectory


def turn(group: Sequence[Trajectory]) -> list[Comparison]:
    """One comparison for each trained agent and turn."""
    return Discounted(discount=1.0)(group)
