"""What requests and answers hold beside the project's own types."""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeVar

from pydantic import ConfigDict, Field, JsonValue, create_model

from lightning_core.types import (
    UNNAMED,
    Alert,
    Attempt,
    Call,
    Event,
    Member,
    Metrics,
    Record,
    ResourceVersion,
    Reward,
    Rollout,
    RolloutCount,
    Run,
    Sampling,
    Task,
)

MOST_RECORDS: Final = 10_000
"""In one request."""
MOST_IDS: Final = 1_000
LONGEST_WAIT: Final = 60.0
"""Seconds of a long-poll: proxies cut what is silent for longer."""
_DAY: Final = 86_400.0

T = TypeVar("T")
Some = Annotated[list[T], Field(min_length=1, max_length=MOST_RECORDS)]
Name = Annotated[str, Field(min_length=1)]
Seconds = Annotated[float, Field(gt=0, le=_DAY)]
Wait = Annotated[float, Field(ge=0, le=LONGEST_WAIT)]

_KEY: Final = "ll-WyJydW4iLCJyMSIsMSwidzEiXQ==.c2lnbmF0dXJl"
_AT: Final[dict[str, JsonValue]] = {"rollout_id": "r1", "attempt": 1}
_TIMES: Final[dict[str, JsonValue]] = {"started_at": 1750000000.0, "ended_at": 1750000001.5}
_TASK: Final[dict[str, JsonValue]] = {"input": {"question": "How many boats are there?"}}
_LAST: Final = "Of each rollout those of its last attempt."
_NEXT: Final = (str | None, "Give it as `after` to get the rest; None if this was the last page.")


def _example(**fields: JsonValue) -> ConfigDict:
    """The example of a body in the OpenAPI document."""
    return ConfigDict(json_schema_extra={"examples": [fields]})


def _answer(name: str, about: str, **fields: tuple[Any, str]) -> type[Record]:
    """What the OpenAPI document says of an answer, whose fields each have a type and a description."""
    made: dict[str, Any] = {
        field: (kind, Field(description=words)) for field, (kind, words) in fields.items()
    }
    return create_model(name, __base__=Record, __doc__=about, **made)


class Held(Record):
    """An attempt by name, in place of the key of its lease: an admin needs no proof."""

    rollout_id: Name
    attempt: int
    worker: Name


Key = Name | Held
Keys = Annotated[list[Key], Field(max_length=MOST_RECORDS)]


# rollouts -----------------------------------------------------------------------------------------
class Enqueue(Record):
    """Rollouts to run."""

    model_config = _example(
        rollouts=[{"id": "r1", "run_id": "run", "task": _TASK, "group_id": "g1", "step": 0}]
    )
    rollouts: Some[Rollout]
    """Of any runs that the token is for; `status`, `attempts` and what follows from them are left out."""


class EnqueueTasks(Record):
    """Tasks, of each of which `group_size` rollouts are to be run."""

    model_config = _example(run_id="run", tasks=[_TASK])
    run_id: Name
    tasks: Some[Task]
    step: int = 0
    """Rollout ids follow from run, step and task, and from policy version and sampling if they are given:
    the same request sent twice enqueues nothing twice."""
    group_size: int = Field(default=1, ge=1, le=1024)
    sampling: Sampling = Sampling()
    policy_version: int | None = None
    priority: int = 0
    max_attempts: int = Field(default=1, ge=1)


class RolloutIds(Record):
    """Which rollouts."""

    model_config = _example(rollout_ids=["r1", "r2"])
    rollout_ids: Some[Name]


class Cancel(RolloutIds):
    """Which rollouts to cancel."""

    skip_unknown: bool = False
    """Leave out those that are not in the store; otherwise the first of them is refused."""


class WaitFinished(RolloutIds):
    """For which rollouts to wait, and how long."""

    model_config = _example(rollout_ids=["r1", "r2"], wait=30)
    wait: Wait = 0.0
    """Seconds after which the answer comes in any case; ask again until `done`."""


Enqueued = _answer(
    "Enqueued",
    "The rollouts that were asked for.",
    new=(int, "How many were not known before."),
    rollout_ids=(list[str], "All of them, in order."),
)
Rollouts = _answer(
    "Rollouts",
    "Rollouts, in the order they were enqueued or asked for.",
    rollouts=(list[Rollout], "One page of them."),
    next=_NEXT,
)
Counts = _answer(
    "Counts",
    "How many rollouts there are of each step, split and status.",
    counts=(list[RolloutCount], "By rising step."),
)
Finished = _answer(
    "Finished",
    "Those that are finished.",
    rollouts=(list[Rollout], "In the order of the ids."),
    done=(bool, "Whether these are all."),
)
Cancelled = _answer("Cancelled", "A cancellation.", cancelled=(int, "How many were not finished yet."))


# leases -------------------------------------------------------------------------------------------
class LeaseRequest(Record):
    """What a worker asks for."""

    model_config = _example(worker="w1", limit=4, seconds=60, wait=30, agent="writer")
    worker: Name
    """Its own name."""
    limit: int = Field(default=1, ge=1, le=1024)
    """How many rollouts at most."""
    seconds: Seconds = 60.0
    """How long it holds them, unless a heartbeat comes; then they are given to others."""
    wait: Wait = 0.0
    """Seconds to wait for one if there is none."""
    run_id: str | None = None
    """Only of this run; with a token of one run it is that run."""
    agent: Name = UNNAMED
    """As whom the app's calls are recorded."""
    gateway: bool = True
    """Whether to find a gateway for the app: nothing is leased while the run's gateways are away, and each
    lease has an `environment`. False for a worker that finds one by itself."""


class Leased(Record):
    """A rollout that the worker holds."""

    key: str = Field(examples=[_KEY])
    """The proof of it: every further request about this attempt bears it."""
    attempt: Attempt
    timeout: float | None = None
    """Seconds after which the run wants an attempt ended, as a failure; None for no limit."""
    environment: dict[str, str] | None = None
    """The app's environment variables, `OPENAI_BASE_URL`, `OPENAI_API_KEY` and `LIGHTNING_REWARD_URL`
    among them: calls made with these are answered by the policy and recorded. None if no
    gateway answers: give the lease back, unless the app needs none."""


class Heartbeat(Record):
    """Which leases to extend."""

    model_config = _example(keys=[_KEY], seconds=60, wait=20)
    keys: Keys
    seconds: Seconds = 60.0
    """From now on."""
    wait: Wait = 0.0
    """With all still held: seconds to wait for a cancellation, so that a worker hears of it at once; at
    most half of `seconds`, so that none is lost by it."""


class Finish(Record):
    """How an attempt ended: with `reward` it succeeded, with `error` it failed, with both it failed for
    good and has that reward. With neither it succeeded: its final reward was posted before, or a judge
    gives it."""

    model_config = _example(key=_KEY, reward=1.0)
    key: Key
    """For an attempt that an admin names without its key, no rules of the run's trainer are applied."""
    reward: float | None = None
    error: str | None = None


class Release(Record):
    """Which leases to give back unfinished."""

    model_config = _example(keys=[_KEY])
    keys: Keys


class Reclaim(Record):
    """What a worker held that died."""

    model_config = _example(worker="w1")
    worker: Name
    run_id: str | None = None
    """Only of this run; with a token of one run it is that run."""


Leases = _answer("Leases", "Leased rollouts.", leases=(list[Leased], "Empty if there was nothing to do."))
News = _answer("News", "How a wait ended.", news=(bool, "Whether it ended before the time was up."))
Beat = _answer(
    "Beat",
    "Which leases are held.",
    held=(list[Key], "The keys of leases that were extended."),
    lost=(list[Key], "Of those that ended, were cancelled or went to others: stop working on them."),
)
Reclaimed = _answer("Reclaimed", "Rollouts taken back.", released=(int, "How many are queued again."))
Nothing = _answer("Nothing", "It is done.")


# records ------------------------------------------------------------------------------------------
class AddRewards(Record):
    """Rewards to record, all or none."""

    model_config = _example(
        rewards=[{**_AT, "value": 0.5, "id": "first", "reason": "half of it is right"}], keys=[_KEY]
    )
    rewards: Some[Reward]
    """One with an `id` counts once, however often it is sent."""
    keys: Keys = Field(default_factory=list)
    """Of the leases that they belong to; with an admin's token they are not needed."""
    running: bool = False
    """Refuse those of attempts that have ended. Those of workers are refused then in any case."""


class AddEvents(Record):
    """Tool runs and spans to record, all or none."""

    model_config = _example(
        events=[{"kind": "tool", "id": "t1", **_AT, "agent": "writer", "name": "search", **_TIMES}],
        keys=[_KEY],
    )
    events: Some[Event]
    keys: Keys = Field(default_factory=list)
    """As for rewards."""


class AddCalls(Record):
    """Calls to record that the app made elsewhere than at the gateway, which records its own."""

    model_config = _example(
        calls=[
            {
                "id": "c1",
                **_AT,
                "agent": "critic",
                "trained": False,
                "endpoint": "https://models.example/v1",
                "model": "large",
                "choices": [{"message": {"role": "assistant", "content": "Yes."}}],
                **_TIMES,
            }
        ],
        keys=[_KEY],
    )
    calls: Some[Call]
    keys: Keys = Field(default_factory=list)
    """As for rewards."""
    running: bool = False
    """As for rewards."""


Stored = _answer(
    "Stored",
    "Records that were added.",
    stored=(int, "How many the request had; those that were known already among them."),
)
CallsOf = _answer("CallsOf", "Calls.", calls=(dict[str, list[Call]], _LAST))
RewardsOf = _answer("RewardsOf", "Rewards.", rewards=(dict[str, list[Reward]], _LAST))
EventsOf = _answer("EventsOf", "Events.", events=(dict[str, list[Event]], _LAST))


# runs ---------------------------------------------------------------------------------------------
class KeyedMember(Member):
    """A process that plays a role in a run, with the proof that it is that member."""

    model_config = _example(run_id="run", role="runner", name="w1")
    key: str | None = None
    """A worker sends what the first answer had with each further sign of life, and to end its membership;
    with an admin's token it is not needed."""


class PublicRun(Record):
    """A run, without its secret."""

    id: str
    config: dict[str, JsonValue]
    folder: str | None
    status: str
    created_at: float
    provenance: dict[str, JsonValue]


class AddAlerts(Record):
    """Alerts to record, all or none."""

    model_config = _example(
        alerts=[{"run_id": "run", "id": "a1", "rule": "disk", "message": "the disk is full"}]
    )
    alerts: Some[Alert]


Runs = _answer("Runs", "Runs.", runs=(list[PublicRun], "The newest first."), next=_NEXT)
SecretRuns = _answer(
    "SecretRuns",
    "Runs with the secrets that sign their tokens.",
    runs=(list[Run], "The newest first."),
    next=_NEXT,
)
Resources = _answer(
    "Resources", "Versions of a resource.", resources=(list[ResourceVersion], "By rising version.")
)
AllMetrics = _answer(
    "AllMetrics",
    "Metrics of a run.",
    metrics=(list[Metrics], 'By rising step. A number that is not finite is a string: "NaN", "Infinity".'),
    next=_NEXT,
)
Members = _answer("Members", "Who plays in a run.", members=(list[Member], "By role and name."))
Alerts = _answer(
    "Alerts", "Alerts of a run.", alerts=(list[Alert], "In the order they were added."), next=_NEXT
)
Added = _answer("Added", "Alerts that were added.", new=(int, "How many were not known before."))
