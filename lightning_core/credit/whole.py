"""Uniform and per-agent credit: every call of a rollout gets the rollout's own return.

    G(i, t) = R_i + sum of r_i          for every trained transition t of rollout i

`uniform` compares it over the group. This is LightningRL's identical assignment (Luo et al., Agent Lightning,
arXiv 2508.03680, section 3.3) with GRPO's group baseline (Shao et al., DeepSeekMath, arXiv 2402.03300,
section 4.1). It assumes that all calls are equally responsible for the outcome. An agent with a final reward
of its own has that in place of R_i, and is compared with itself: two agents' rewards have no common baseline.

`per_agent` compares each agent with itself, over the rollouts in which it acted, each rollout counted once
however often the agent acted in it. An agent that is only called when things went wrong (a query rewriter,
say) sees lower returns than the others; a baseline shared by all agents would push everything it does down.
After Dr. MAS (Feng et al., arXiv 2602.08847), which normalises by each agent's own mean and deviation to keep
the gradient's scale alike among agents. It assumes that the rollouts in which an agent acts are comparable
with one another. An agent that acted in a single rollout of the group has nothing to be compared with and
gets no advantage there: whether that is so depends on the others alone, so with "leave_one_out" the gradient
is the true one times the chance that another rollout called the agent.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from lightning_core.credit.base import Comparison, parts_of, total_parts
from lightning_core.experience.returns import total_return
from lightning_core.records.types import Trajectory


def uniform(group: Sequence[Trajectory]) -> list[Comparison]:
    """One comparison of all rollouts by their whole return, and one for each agent with its own reward."""
    own = {agent for trajectory in group for agent in trajectory.agent_rewards}
    agents = _trained(group)
    parts = [agents - own, *({agent} for agent in sorted(agents & own))]
    return [by_return(group, part) for part in parts if part]


def per_agent(group: Sequence[Trajectory]) -> list[Comparison]:
    """One comparison for each trained agent."""
    return [by_return(group, {agent}) for agent in sorted(_trained(group))]


def _trained(group: Sequence[Trajectory]) -> set[str]:
    return {t.agent for trajectory in group for t in trajectory.transitions if t.trained}


def by_return(group: Sequence[Trajectory], agents: Collection[str] | None = None) -> Comparison:
    """The trained calls of these agents, or of all, by their whole return."""
    return Comparison(
        tuple(
            {
                t.key: total_return(trajectory, t.agent)
                for t in trajectory.transitions
                if t.trained and (agents is None or t.agent in agents)
            }
            for trajectory in group
        ),
        parts=parts_of(group, lambda trajectory, t: total_parts(trajectory, t.agent)),
    )
