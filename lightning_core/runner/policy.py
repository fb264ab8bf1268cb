"""What becomes of a rollout whose function failed: an explicit choice, never a silent reward of 0."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lightning_core.errors import ConfigError
from lightning_core.types import REWARD_RANGE, Attempt, is_reward


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """Try again, and when that is used up drop the rollout or give it a reward."""

    retries: int = 1
    """Further attempts after the first; whoever enqueues a rollout gives it `max_attempts = 1 + retries`."""
    then: Literal["drop", "penalise"] = "drop"
    """"drop": the rollout is in no baseline and never trained on. "penalise": it ends with `penalty`
    as its reward and is trained on, so that the policy learns to avoid what made the app fail."""
    penalty: float = 0.0
    """The return of a penalised rollout: its intermediate rewards do not count."""

    def __post_init__(self) -> None:
        if self.retries < 0:
            raise ConfigError(f"retries={self.retries!r} of the failure policy must be 0 or more")
        if self.then not in ("drop", "penalise"):
            raise ConfigError(f"then={self.then!r} of the failure policy must be 'drop' or 'penalise'")
        if not is_reward(self.penalty):
            raise ConfigError(f"penalty={self.penalty!r} of the failure policy must be {REWARD_RANGE}")

    @property
    def max_attempts(self) -> int:
        """What to enqueue a rollout with."""
        return 1 + self.retries

    def reward_of_failure(self, attempt: Attempt) -> float | None:
        """The reward to end a failed attempt with; None if it is tried again or dropped."""
        last = attempt.number >= attempt.rollout.max_attempts
        return self.penalty if last and self.then == "penalise" else None
