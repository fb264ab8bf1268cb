"""Per-agent credit: each agent is compared with itself in the other rollouts of the group.

    G(i, t) = R_i + sum of r_i          compared over the rollouts in which agent(t) acted

each rollout counted once however often the agent acted in it. An agent that is only called when
things went wrong (a query rewriter, say) sees lower returns than the others; a baseline shared by
all agents would push everything it does down. After Dr. MAS (Feng et al., arXiv 2602.08847), which
normalises by each agent's own mean and deviation to keep the gradient's scale alike among agents.

Assumes that the rollouts in which an agent acts are comparable with one another. An agent that acted
in a single rollout of the group has nothing to be compared with and gets no advantage there: whether
that is so depends on the others alone, so with "leave_one_out" the gradient is the true one times the
chance that another rollout called the agent.
"""

from __future__ import annotations

from collections.abc import Sequence

from lightning_core.credit.base import Comparison, parts_of, total_parts, total_return
from lightning_core.types import Trajectory


def per_agent(group: Sequence[Trajectory]) -> list[Comparison]:
    """One comparison for each trained agent."""
    agents = sorted({t.agent for trajectory in group for t in trajectory.transitions if t.trained})
    return [
        Comparison(
            tuple(
                {
                    t.key: total_return(trajectory, agent)
                    for t in trajectory.transitions
                    if t.agent == agent and t.trained
                }
                for trajectory in group
            ),
            parts=parts_of(group, lambda trajectory, t: total_parts(trajectory, t.agent)),
        )
        for agent in agents
    ]
