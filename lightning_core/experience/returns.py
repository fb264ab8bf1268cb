"""The return of a rollout: which reward counts, what a failure counts, and which groups are left out.

One place, asked by all: the runner and the API when an attempt ends, the trainer's batch, evaluations and
searches, and the pages that explain an update.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from lightning_core.errors import ConfigError
from lightning_core.records.linking import in_order
from lightning_core.records.types import (
    REWARD_RANGE,
    Attempt,
    Call,
    Reward,
    Rollout,
    Status,
    Trajectory,
    is_reward,
)


def total_return(trajectory: Trajectory, agent: str) -> float:
    """Final reward plus all intermediate rewards, each counted once: G = R + sum of r."""
    return trajectory.final(agent) + trajectory.intermediate


# final rewards ---------------------------------------------------------------------------------------
def final_rewards(rewards: Iterable[Reward]) -> dict[str | None, float]:
    """The final rewards that count, by agent, the whole rollout's under None: the last given of each."""
    return {reward.agent: reward.value for reward in in_order(rewards) if reward.kind == "final"}


def last_final(rewards: Iterable[Reward], attempt: int) -> float | None:
    """The last final reward of the whole rollout among those of that attempt, if there is one.

    The last by the time it was given: those given in the app's process are stored when the attempt ends.
    """
    return final_rewards(one for one in rewards if one.attempt == attempt).get(None)


def with_final(rollout: Rollout, rewards: Iterable[Reward]) -> Rollout:
    """The rollout with the final reward that counts as its own; a failed one keeps that of its failure."""
    final = final_rewards(rewards).get(None)
    if final is None or rollout.status is not Status.SUCCEEDED:
        return rollout
    return rollout.model_copy(update={"reward": final})


def reward_of(rollout: Rollout) -> float:
    """The reward in an evaluation: 0 for a rollout that failed or whose reward can't be used."""
    usable = rollout.reward is not None and is_reward(rollout.reward)
    return rollout.reward or 0.0 if usable and rollout.status is Status.SUCCEEDED else 0.0


def agent_rewards_of(rollout: Rollout, rewards: Sequence[Reward]) -> dict[str, float]:
    """The final rewards of single agents in an evaluation, which for them stand in place of `reward_of`."""
    given = final_rewards(counted_rewards(rollout, rewards))
    return {agent: value for agent, value in given.items() if agent is not None and is_reward(value)}


def trial_reward(rollout: Rollout) -> float:
    """The reward in a search: 0 for a rollout that failed without a penalty."""
    return rollout.reward or 0.0


def may_count(rollout: Rollout) -> bool:
    """Whether it may be trained on: it has a final reward, or is to get one from a judge."""
    return rollout.reward is not None or rollout.status is Status.SUCCEEDED


# failures --------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """A failure of the world is tried again, then dropped; one that follows the policy's replies counts.

    Of the world: a connection, a server's error, a killed worker (`outcome.is_of_world`), and whatever fails
    before a trained agent had a reply. The rest may be the policy's doing. Were it tried again until it goes
    well, or dropped, what crashes the app would be compared by its good tries alone, and rise.
    """

    retries: int = 1
    """Further attempts after the first; a rollout is enqueued with `max_attempts = 1 + retries`."""
    then: Literal["lowest", "drop"] | float = "lowest"
    """The return of a failure after the policy's replies. "lowest": the lowest return of its group or 0,
    whichever is less; in a validation nothing. A number: that, and so is the return of one before any reply
    when its tries are used up. "drop": nothing, it is handled like a failure of the world. It is the whole
    return of such a rollout: its intermediate rewards do not count."""
    strict: bool = False
    """Whether a rollout fails too if calls of it, or beside it, were noticed and could not be recorded: those
    of the alert `unseen_calls`. Its reward may rest on replies that are not trained on."""

    def __post_init__(self) -> None:
        if self.retries < 0:
            raise ConfigError(f"retries={self.retries!r} of the failure policy must be 0 or more")
        if self.then not in ("lowest", "drop") and (isinstance(self.then, str) or not is_reward(self.then)):
            raise ConfigError(
                f"then={self.then!r} of the failure policy must be 'lowest', 'drop' or {REWARD_RANGE}"
            )

    @property
    def max_attempts(self) -> int:
        """The number of attempts to enqueue a rollout with."""
        return 1 + self.retries

    @property
    def lowest(self) -> bool:
        """Whether a failure that counts has the lowest return of its group (`with_lowest`)."""
        return self.then == "lowest"

    def reward_of_failure(self, attempt: Attempt, calls: Iterable[Call], *, world: bool) -> float | None:
        """The reward to end a failed attempt with; None if it is tried again or dropped.

        `calls`: those of the rollout. `world`: whether the error is one of the world. With "lowest" it is 0
        until the trainer knows the group.
        """
        replied = any(c.trained and c.status == "completed" and c.attempt == attempt.number for c in calls)
        last = attempt.number >= attempt.rollout.max_attempts
        if world or self.then == "drop":
            return None
        if self.then == "lowest":
            return 0.0 if replied and attempt.rollout.split == "train" else None
        return self.then if replied or last else None


def counted_failures(rollouts: Iterable[Rollout]) -> set[str]:
    """The ids of the failed rollouts that count all the same."""
    return {one.id for one in rollouts if one.status is Status.FAILED and one.reward is not None}


def counted_rewards(rollout: Rollout, rewards: Sequence[Reward]) -> Sequence[Reward]:
    """The rewards that count beside the rollout's own. A failed one has none: the penalty is its whole
    return, as its earlier rewards say where it failed rather than how good it was."""
    return () if rollout.status is Status.FAILED else rewards


# which failures count is decided when an attempt ends, their return only where the group is known
def with_lowest(trajectories: Sequence[Trajectory], failed: Collection[str]) -> list[Trajectory]:
    """The trajectories, those of `failed` rollouts with their group's lowest return if that is less; a group
    of one has the lowest of all.

    For each agent, as agents may have rewards of their own. A group of which all failed is left out: it
    compares nothing, and the trainer reports a step in which no rollout succeeds.
    """
    groups: dict[str, list[Trajectory]] = {}
    for each in trajectories:
        groups.setdefault(each.group_id, []).append(each)
    found = []
    everyone = [each for each in trajectories if each.rollout_id not in failed]
    for group in groups.values():
        whole = [each for each in group if each.rollout_id not in failed] if len(group) > 1 else everyone
        found += [_lowered(each, whole) if each.rollout_id in failed else each for each in group if whole]
    return found


def _lowered(own: Trajectory, whole: Sequence[Trajectory]) -> Trajectory:
    agents = {agent for each in whole for agent in each.agent_rewards}
    reward = min(own.reward, *(each.reward + each.intermediate for each in whole))
    lowest = {agent: min(own.reward, *(total_return(each, agent) for each in whole)) for agent in agents}
    return replace(own, reward=reward, agent_rewards=lowest)


# groups ----------------------------------------------------------------------------------------------
def unusable_groups(
    rollouts: Sequence[Rollout], rewards: Mapping[str, Sequence[Reward]]
) -> dict[str, tuple[Rollout, float]]:
    """The groups with a reward that no store takes, and where it is: of another version, or of a store of a
    plugin."""
    found: dict[str, tuple[Rollout, float]] = {}
    for rollout in rollouts:
        own = () if rollout.reward is None else (rollout.reward,)
        given = (each.value for each in counted_rewards(rollout, rewards[rollout.id]))
        bad = next((value for value in (*own, *given) if not is_reward(value)), None)
        if bad is not None:
            found.setdefault(rollout.group_id, (rollout, bad))
    return found


def comparable(rollouts: Sequence[Rollout], rewards: Mapping[str, Sequence[Reward]]) -> list[Rollout]:
    """The rollouts that are compared: with a reward, in groups without an unusable one."""
    unusable = unusable_groups(rollouts, rewards)
    return [one for one in rollouts if one.reward is not None and one.group_id not in unusable]


def without_left_out(
    rollouts: Sequence[Rollout], trajectories: Sequence[Trajectory], unusable: Collection[str]
) -> list[Rollout]:
    """The rollouts, without a reward in groups that `with_lowest` has left out."""
    kept = {each.group_id for each in trajectories} | set(unusable)
    return [r if r.group_id in kept else r.model_copy(update={"reward": None}) for r in rollouts]
