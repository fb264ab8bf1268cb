"""Turn-level GAE: a critic's values say how much better things went with each turn.

    delta(t) = r(t) + discount * V(next) - V(t)
    A(t)     = delta(t) + discount * lam * A(next)          target(t) = A(t) + V(t)

next is the following turn of the branch. Where branches part, V and A of the next are their means over the
branches: each ends with the final reward, which a sum would count several times. The price is that what one
of k branches earns on the way counts 1/k for the calls before, where `turn` counts it whole. After the last
turn of a branch comes the final reward instead. A turn without a value (of an agent that is not trained) is
passed through: its value is what comes after it. Where agents have final rewards of their own, each agent's
turns are credited with its own, and the turns of all others are passed through.

Schulman et al., GAE, arXiv 1506.02438, over turns instead of tokens as in Turn-PPO (Li et al., arXiv
2512.17008).

Assumes a critic that is right about the prompts: its errors are bias, unless lam and discount are 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import ClassVar

from lightning_core.credit.base import CRITIC, Comparison, Part, add_parts
from lightning_core.credit.branches import Branches, branches, reward_without_call
from lightning_core.errors import TrainingError
from lightning_core.ranges import check_range
from lightning_core.records.types import Key, Trajectory


@dataclass(frozen=True, slots=True)
class Gae:
    """Generalised advantage estimation along the branch."""

    needs_critic: ClassVar[bool] = True
    discount: float = 1.0
    lam: float = 0.95
    """1: the whole return minus the value; 0: only up to the next turn's value."""

    def __post_init__(self) -> None:
        check_range("discount", self.discount, of="Gae", least=0, most=1)
        check_range("lam", self.lam, of="Gae", least=0, most=1)

    def __call__(self, group: Sequence[Trajectory]) -> list[Comparison]:
        """One comparison without a baseline, and what the critic is to learn."""
        parts = {key: made for trajectory in group for key, made in self._parts(trajectory).items()}
        advantages = [
            {t.key: add_parts(parts[t.key]) for t in each.transitions if t.trained} for each in group
        ]
        values = {t.key: t.value for each in group for t in each.transitions}
        targets = {key: a + (values[key] or 0.0) for peer in advantages for key, a in peer.items()}
        return [Comparison(tuple(advantages), baseline=False, targets=targets, parts=lambda key: parts[key])]

    def _parts(self, trajectory: Trajectory) -> dict[Key, tuple[Part, ...]]:
        """Returns the parts of the advantages."""
        agents = {t.agent for t in trajectory.transitions}
        finals = [(agents, trajectory.reward)]
        if trajectory.agent_rewards:
            finals = [({agent}, trajectory.final(agent)) for agent in agents]
        tree, unaddressed = branches(trajectory), reward_without_call(trajectory)
        parts: dict[Key, tuple[Part, ...]] = {}
        for own, final in finals:
            parts |= self._parts_of(own, final + unaddressed, tree)
        return parts

    def _parts_of(self, agents: set[str], final: float, tree: Branches) -> dict[Key, tuple[Part, ...]]:
        """Returns the parts for the turns of some agents that share one final reward."""
        parts: dict[Key, tuple[Part, ...]] = {}
        value, advantage = ([0.0] * len(tree.transitions) for _ in range(2))
        for place, t in reversed(list(enumerate(tree.transitions))):
            below = tree.children[place]
            following = fmean(value[i] for i in below) if below else 0.0
            reward = t.reward + (0.0 if below else final)
            own = t.agent in agents
            value[place] = t.value if own and t.value is not None else reward + self.discount * following
            later = fmean(advantage[i] for i in below) if below else 0.0
            made = (
                Part("reward", reward),
                Part("value of the next turn", following, self.discount),
                Part(CRITIC, value[place], -1.0),
                Part("advantage of the next turn", later, self.discount * self.lam),
            )
            advantage[place] = add_parts(made)
            if own:
                parts[t.key] = made
            if t.trained and t.value is None:
                raise TrainingError(
                    f"call {t.call_id!r} of rollout {t.rollout_id!r} has no value: credit 'gae' needs an "
                    "algorithm with a critic, such as PPO"
                )
        return parts
