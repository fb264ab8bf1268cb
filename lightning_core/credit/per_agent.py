"""Per-agent credit: each agent is compared with itself in the other rollouts of the group.

    A(i, t) = (G_i - mean_j G_j) / std_j G_j      with j over the rollouts in which agent(t) acted

each rollout counted once however often the agent acted in it. An agent that is only called when
things went wrong (a query rewriter, say) sees lower returns than the others; a baseline shared by
all agents would push everything it does down. After Dr. MAS (Feng et al., arXiv 2602.08847), which
normalises by each agent's own mean and deviation to keep the gradient's scale alike among agents.

Assumes that the rollouts in which an agent acts are comparable with one another. An agent that acted
in a single rollout of the group has nothing to be compared with and gets no advantage there.
"""

from __future__ import annotations

from collections.abc import Sequence

from lightning_core.credit.base import normalise, total_return
from lightning_core.types import Key, Trajectory


def per_agent(group: Sequence[Trajectory]) -> dict[Key, float]:
    """The advantage of every trained transition whose agent's returns differ within the group."""
    advantages: dict[Key, float] = {}
    for agent in sorted({t.agent for trajectory in group for t in trajectory.transitions if t.trained}):
        acted = [
            (i, t)
            for i, trajectory in enumerate(group)
            for t in trajectory.transitions
            if t.agent == agent and t.trained
        ]
        rollouts = sorted({i for i, _ in acted})
        normalised = normalise([total_return(group[i]) for i in rollouts])
        if normalised is not None:
            of_rollout = dict(zip(rollouts, normalised, strict=True))
            advantages.update({t.key: of_rollout[i] for i, t in acted})
    return advantages
