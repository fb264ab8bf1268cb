"""Runs of the app: rollouts, their attempts, and the rewards they came to."""

from __future__ import annotations

import time
from enum import StrEnum
from typing import Final, Literal

from pydantic import Field

from lightning_core.types.record import Record
from lightning_core.types.tasks import Split, Task

LARGEST_REWARD: Final = 1e9
"""How large a reward may be, either way. The sum of a million of them is 1e15, and its square 1e30: nothing
that is made of a batch's rewards overflows, in 32 bits neither."""
REWARD_RANGE: Final = "a finite number from -1e9 to 1e9"
"""What a reward is, for messages."""


def is_reward(value: float) -> bool:
    """Whether a number can be a reward: finite, and no larger than `LARGEST_REWARD` either way."""
    return -LARGEST_REWARD <= value <= LARGEST_REWARD


class Sampling(Record):
    """Sampling settings that a rollout imposes on the calls of trained agents."""

    temperature: float = Field(default=1.0, ge=0.0, allow_inf_nan=False)
    """1.0 samples from the policy itself, 0.0 is greedy."""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)


class Status(StrEnum):
    """Where a rollout stands."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def finished(self) -> bool:
        return self in (Status.SUCCEEDED, Status.FAILED, Status.CANCELLED)


class Rollout(Record):
    """One run of the app on one task."""

    id: str
    run_id: str
    task: Task
    group_id: str
    """Rollouts with the same group are compared with one another."""
    step: int
    """The training step that asked for it; the update of that step consumes it."""
    split: Split = "train"
    sampling: Sampling = Sampling()
    policy_version: int | None = None
    """The version of the weights that is to answer its calls; None: the current one."""
    priority: int = 0
    """Higher is leased first."""
    max_attempts: int = 1
    status: Status = Status.QUEUED
    attempts: int = 0
    """Attempts started so far; the last one is the one that counts."""
    reward: float | None = None
    """The final reward it ended with; None until the rollout has succeeded (or was penalised), and for one
    whose final reward a judge gives afterwards."""
    error: str | None = None
    """Why the last attempt failed."""
    created_at: float = Field(default_factory=time.time)
    finished_at: float | None = None

    @property
    def counts(self) -> bool:
        """Whether it may be trained on: it has a final reward, or is to get one from a judge."""
        return self.reward is not None or self.status is Status.SUCCEEDED


class RolloutCount(Record):
    """The rollouts of a run that agree in these."""

    step: int
    split: Split
    status: Status
    count: int
    rewarded: int
    """How many of them ended with a reward."""
    reward: float
    """The sum of those rewards."""


class Attempt(Record):
    """One try of a rollout by one worker, held by a lease."""

    rollout: Rollout
    number: int
    """1 for the first try."""
    worker: str
    lease_until: float
    """Unix seconds; after it the rollout may be given to another worker."""


class Reward(Record):
    """One reward with its address: a rollout, and for an intermediate one the call it is about."""

    rollout_id: str
    attempt: int
    value: float
    kind: Literal["final", "intermediate"] = "final"
    agent: str | None = None
    """Whose it is; a final reward without one is the whole rollout's."""
    call_id: str | None = None
    """The call it is about: its own id, or that of its reply."""
    source: str = "app"
    """Who gave it: "app", "judge", or "air:" and the rule."""
    reason: str | None = None
    created_at: float = Field(default_factory=time.time)
    id: str | None = None
    """What its giver calls it: of several with one id in an attempt the first counts. None: each counts."""
