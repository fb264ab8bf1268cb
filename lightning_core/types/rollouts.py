"""Tasks, runs of the app on them (rollouts and their attempts), and their rewards."""

from __future__ import annotations

import hashlib
import json
import time
from enum import StrEnum
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

LARGEST_REWARD: Final = 1e9
"""How large a reward may be, either way. The sum of a million of them is 1e15, and its square 1e30: nothing
that is made of a batch's rewards overflows, in 32 bits neither."""
REWARD_RANGE: Final = "a finite number from -1e9 to 1e9"
"""What a reward is, for messages."""


def is_reward(value: float) -> bool:
    """Whether a number can be a reward: finite, and no larger than `LARGEST_REWARD` either way."""
    return -LARGEST_REWARD <= value <= LARGEST_REWARD


class Record(BaseModel):
    """Base of everything that is stored or sent: frozen, and closed to unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


Split = Literal["train", "validation"]


class Task(Record):
    """One problem to solve."""

    id: str = ""
    """Stable identity; by default a hash of `input`, so the same problem is the same task."""
    input: dict[str, JsonValue]
    """What the app is given. Must be JSON, so that a worker in another process can have it."""
    split: Split = "train"

    @model_validator(mode="before")
    @classmethod
    def _default_id(cls, values: Any) -> Any:
        if isinstance(values, dict) and not values.get("id"):
            text = json.dumps(values.get("input"), sort_keys=True, default=repr)
            return {**values, "id": hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}
        return values


class Demonstration(Record):
    """A request, and the reply that the policy is to give to it."""

    messages: list[dict[str, JsonValue]] = Field(min_length=1)
    """The conversation so far, as in Chat Completions."""
    reply: str | dict[str, JsonValue]
    """The text, or an assistant message with `content` and `tool_calls`."""
    tools: list[dict[str, JsonValue]] | None = None
    """The tools that the request offers."""
    agent: str | None = None
    """Whose reply it is. None: anybody's, as all trained agents share one policy."""
    template: dict[str, JsonValue] = Field(default_factory=dict)
    """Further arguments of the chat template (`chat_template_kwargs`)."""

    @property
    def message(self) -> dict[str, JsonValue]:
        """The reply as an assistant message."""
        said = {"content": self.reply} if isinstance(self.reply, str) else self.reply
        return {**said, "role": "assistant"}

    @model_validator(mode="after")
    def _check(self) -> Demonstration:
        for place, message in enumerate(self.messages):
            if not isinstance(message.get("role"), str):
                raise ValueError(f"messages[{place}] has no role")
        if isinstance(self.reply, dict) and self.reply.get("role", "assistant") != "assistant":
            raise ValueError(f"the reply has the role {self.reply['role']!r}; only an assistant replies")
        if not self.message.get("content") and not self.message.get("tool_calls"):
            raise ValueError("the reply says nothing: give it text or tool calls")
        return self


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
