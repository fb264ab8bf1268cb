"""Turn credit: an agent's k-th call is compared with the k-th calls of that agent in the other rollouts.

    A(i, k) = G(i, k) - mean of G(j, k) over the other rollouts j that are still alive at turn k

G is the return-to-go along the branch. After verl's RFC 7244: a baseline that normalises turn by turn over
whoever happens to be there is biased where the policy decides how many turns there are, and the mean over
the *others* still alive is not. A rollout alone at a turn is compared with the whole returns of the other
rollouts, which is unbiased too; without a comparison, long rollouts would be learnt from less.

Assumes that equal turns are comparable; where they are not, the baseline is only less good. A call is an
agent's k-th by the order in which calls began, so parallel calls may change places: that is noise, not bias.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from lightning_core.credit.base import Comparison
from lightning_core.credit.branches import returns_to_go
from lightning_core.credit.peers import peers_by, with_others
from lightning_core.types import Key, Trajectory


def turn(group: Sequence[Trajectory]) -> list[Comparison]:
    """One comparison for each trained agent and turn."""
    returns = {k: g for each in group for k, g in returns_to_go(each).items()}
    turns = {key: k for each in group for key, k in turn_numbers(each).items()}
    sorted_out = peers_by(lambda t: (t.agent, turns[t.key]), group, returns)
    return [with_others(peers, group, agent) for (agent, _), peers in sorted_out.items()]


def turn_numbers(trajectory: Trajectory) -> dict[Key, int]:
    """Which call of its agent each transition is, from 0; the choices of a call are one turn."""
    calls: defaultdict[str, dict[str, int]] = defaultdict(dict)
    return {t.key: calls[t.agent].setdefault(t.call_id, len(calls[t.agent])) for t in trajectory.transitions}
