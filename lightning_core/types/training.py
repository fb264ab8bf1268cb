"""What lives only inside a training step: frozen slotted dataclasses, never stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Key = tuple[str, str, int]
"""The address of a transition: (rollout_id, call_id, choice)."""


@dataclass(frozen=True, slots=True)
class Transition:
    """A call as an MDP step: state `prompt_ids`, action `completion_ids`.

    Any sequence will do. The trainer's are arrays, which equal no list: compare `list(t.prompt_ids)`.
    """

    rollout_id: str
    call_id: str
    choice: int
    agent: str
    trained: bool
    prompt_ids: Sequence[int]
    completion_ids: Sequence[int]
    logprobs: Sequence[float]
    """Log-probabilities of `completion_ids` under the policy that sampled them; NaN in a demonstration."""
    policy_version: int | None
    """The version of the weights that sampled it; None if no version did, as of a demonstration, or if the
    engine did not say."""
    temperature: float = 1.0
    observation: str = ""
    """Digest of what the agent was shown last, the last message before its reply: equal digests are the same
    observation. "" if that is not known."""
    reward: float = 0.0
    """Sum of the intermediate rewards addressed to this call; each choice of a call bears the same."""
    started_at: float | None = None
    ended_at: float | None = None
    """When the call ran, in Unix seconds; None if not known. Calls that overlap led not to one another."""
    value: float | None = None
    """The critic's estimate of the return from here, if the algorithm has a critic."""
    advantage: float | None = None
    """None = not assigned yet; 0.0 = assigned zero."""
    target: float | None = None
    """What the critic is to learn to estimate here; None if the algorithm has no critic."""

    @property
    def key(self) -> Key:
        """Its address."""
        return self.rollout_id, self.call_id, self.choice


@dataclass(frozen=True, slots=True)
class Trajectory:
    """The transitions of one rollout, in the order their calls started."""

    rollout_id: str
    group_id: str
    task_id: str
    reward: float
    """The final reward of the rollout."""
    transitions: tuple[Transition, ...]
    intermediate: float = 0.0
    """Sum of all intermediate rewards of the rollout, whether or not their calls became transitions."""
    agent_rewards: Mapping[str, float] = field(default_factory=dict)
    """Final rewards of single agents, which for them stand in place of `reward`."""

    def final(self, agent: str) -> float:
        """The final reward as it is for one agent."""
        return self.agent_rewards.get(agent, self.reward)
