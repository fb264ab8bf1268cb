"""The worth of one reply: the reward of its rollout, less the mean reward with other replies in its place.

    value(k) = R - mean R'

R is the reward on record. R' are those of rollouts that fork from it at call k: the same replies before,
others of the same policy from there on. The mean of R' estimates the value of the state before call k, and so
the difference estimates the advantage of the reply (Monte Carlo rollouts from a state, as in VinePPO,
Kazemnejad et al., arXiv 2410.01679). R is one draw of what follows the reply; its luck is in the difference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from lightning_core.experience.returns import trial_reward
from lightning_core.insight.verdict import level_interval
from lightning_core.records.types import Call, Rollout


@dataclass(frozen=True, slots=True)
class ForkResult:
    """The end of a rollout that forked."""

    reward: float | None
    """None if it can't be compared."""
    problem: str | None
    """Why it can't."""
    call: Call | None
    """The call with another reply; None if the rollout did not come to it."""


@dataclass(frozen=True, slots=True)
class ReplyValue:
    """A reply among others that could have stood in its place."""

    reward: float
    """The reward on record."""
    others: tuple[float, ...]
    """Rewards with other replies."""
    interval: tuple[float, float] | None
    """The 95 % interval of the others' mean; None without any."""

    @property
    def mean(self) -> float | None:
        """The mean reward with other replies; None without any."""
        return fmean(self.others) if self.others else None

    @property
    def difference(self) -> float | None:
        """The reward on record less that mean."""
        return self.reward - fmean(self.others) if self.others else None


def read_fork(rollout: Rollout, calls: Sequence[Call]) -> ForkResult:
    """The end of a rollout that forked, given its own calls.

    It is comparable if it came to the call of its fork and has a reward. A failure that follows the policy's
    replies has the run's reward for a failure.
    """
    fork = rollout.sampling.fork
    target = next((c for c in calls if fork and c.id == fork.call_id and c.status == "completed"), None)
    if target is None:
        refused = next((call.error for call in calls if call.status == "refused"), None)
        ended = f"the app ended after {len(calls)} calls without the call of the fork"
        return ForkResult(None, refused or rollout.error or ended, None)
    if rollout.reward is None:
        return ForkResult(None, rollout.error or f"the rollout is {rollout.status} without a reward", target)
    return ForkResult(trial_reward(rollout), None, target)


def count_problems(results: Sequence[ForkResult]) -> list[str]:
    """A line for each reason why forks of a call can't be compared: how many, and why."""
    counts = Counter(each.problem for each in results if each.problem is not None)
    return [
        f"{count} of {len(results)} forks can't be compared: {problem}" for problem, count in counts.items()
    ]


def reply_value(reward: float, others: Sequence[float]) -> ReplyValue:
    """The worth of a reply whose rollout earned `reward`, given the rewards with other replies."""
    if not others:
        return ReplyValue(reward, (), None)
    bounds = min(0.0, reward, *others), max(1.0, reward, *others)
    return ReplyValue(reward, tuple(others), level_interval(others, *bounds))
