"""What requests and answers about records, and about runs as a whole, hold beside the project's own types."""

from __future__ import annotations

from typing import Final

from pydantic import Field, JsonValue

from lightning_core.api.bodies import KEY, Keys, Some, example
from lightning_core.types import (
    Alert,
    Call,
    Event,
    Member,
    Metrics,
    Record,
    ResourceVersion,
    Reward,
    Run,
)

_REWARD: Final[dict[str, JsonValue]] = {
    "rollout_id": "r1",
    "attempt": 1,
    "value": 0.5,
    "id": "first",
    "reason": "half of it is right",
}
_EVENT: Final[dict[str, JsonValue]] = {
    "kind": "tool",
    "id": "t1",
    "rollout_id": "r1",
    "attempt": 1,
    "agent": "writer",
    "name": "search",
    "arguments": '{"query": "boats"}',
    "result": "no boats",
    "started_at": 1750000000.0,
    "ended_at": 1750000001.5,
}
_CALL: Final[dict[str, JsonValue]] = {
    "id": "c1",
    "rollout_id": "r1",
    "attempt": 1,
    "agent": "critic",
    "trained": False,
    "endpoint": "https://models.example/v1",
    "model": "large",
    "choices": [{"message": {"role": "assistant", "content": "Yes."}}],
    "started_at": 1750000000.0,
    "ended_at": 1750000001.5,
}


class AddRewards(Record):
    """Rewards to record, all or none."""

    model_config = example(rewards=[_REWARD], keys=[KEY])
    rewards: Some[Reward]
    """One with an `id` counts once, however often it is sent."""
    keys: Keys = Field(default_factory=list)
    """Of the leases that they belong to; with an admin's token they are not needed."""
    running: bool = False
    """Refuse those of attempts that have ended. Those of workers are refused then in any case."""


class AddEvents(Record):
    """Tool runs and spans to record, all or none."""

    model_config = example(events=[_EVENT], keys=[KEY])
    events: Some[Event]
    keys: Keys = Field(default_factory=list)
    """As for rewards."""


class AddCalls(Record):
    """Calls to record that the app made elsewhere than at the gateway, which records its own."""

    model_config = example(calls=[_CALL], keys=[KEY])
    calls: Some[Call]
    keys: Keys = Field(default_factory=list)
    """As for rewards."""
    running: bool = False
    """As for rewards."""


class Stored(Record):
    """What became of records that were added."""

    stored: int
    """How many the request had; those that were known already among them."""


class CallsOf(Record):
    """Of each rollout the calls of its last attempt."""

    calls: dict[str, list[Call]]


class RewardsOf(Record):
    """Of each rollout the rewards of its last attempt."""

    rewards: dict[str, list[Reward]]


class EventsOf(Record):
    """Of each rollout the events of its last attempt."""

    events: dict[str, list[Event]]


class PublicRun(Record):
    """A run, without its secret."""

    id: str
    config: dict[str, JsonValue]
    folder: str | None
    status: str
    created_at: float
    provenance: dict[str, JsonValue]


class Runs(Record):
    """Runs, the newest first."""

    runs: list[PublicRun]
    next: str | None = None
    """As for rollouts."""


class SecretRuns(Record):
    """Runs with the secrets that sign their tokens, the newest first."""

    runs: list[Run]
    next: str | None = None
    """As for rollouts."""


class Resources(Record):
    """Versions of a resource, by rising version."""

    resources: list[ResourceVersion]


class AllMetrics(Record):
    """Metrics of a run, by rising step. A number that is not finite is a string: "NaN", "Infinity"."""

    metrics: list[Metrics]
    next: str | None = None
    """As for rollouts."""


class PutMember(Member):
    """A sign of life."""

    model_config = example(run_id="run", role="runner", name="w1")
    key: str | None = None
    """What the first answer had, from the second sign of life on; with an admin's token it is not needed."""


class KnownMember(Member):
    """A member as it is kept."""

    key: str
    """Proves that a worker is this member: send it to renew or end its membership."""


class Members(Record):
    """Who plays in a run."""

    members: list[Member]


class AddAlerts(Record):
    """Alerts to record, all or none."""

    model_config = example(
        alerts=[{"run_id": "run", "id": "a1", "rule": "disk", "message": "the disk is full"}]
    )
    alerts: Some[Alert]


class Alerts(Record):
    """Alerts of a run, in the order they were added."""

    alerts: list[Alert]
    next: str | None = None
    """As for rollouts."""


class Added(Record):
    """What became of alerts that were added."""

    new: int
    """How many were not known before."""


def public(run: Run) -> PublicRun:
    """What everybody may know of a run."""
    return PublicRun(**run.model_dump(exclude={"secret"}))
