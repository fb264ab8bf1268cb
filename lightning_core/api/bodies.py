"""What requests and answers about rollouts and leases hold beside the project's own types."""

from __future__ import annotations

from typing import Annotated, Final, TypeVar

from pydantic import ConfigDict, Field, JsonValue

from lightning_core.types import UNNAMED, Attempt, Record, Rollout, RolloutCount, Sampling, Task

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

KEY: Final = "ll-WyJydW4iLCJyMSIsMSwidzEiXQ==.c2lnbmF0dXJl"
_ROLLOUT: Final[dict[str, JsonValue]] = {
    "id": "r1",
    "run_id": "run",
    "task": {"input": {"question": "How many boats are there?"}},
    "group_id": "g1",
    "step": 0,
}


def example(**fields: JsonValue) -> ConfigDict:
    """The example of a body in the OpenAPI document."""
    return ConfigDict(json_schema_extra={"examples": [fields]})


class Held(Record):
    """An attempt by name, in place of the key of its lease: an admin needs no proof."""

    rollout_id: Name
    attempt: int
    worker: Name


Key = Name | Held
Keys = Annotated[list[Key], Field(max_length=MOST_RECORDS)]


class Enqueue(Record):
    """Rollouts to run."""

    model_config = example(rollouts=[_ROLLOUT])
    rollouts: Some[Rollout]
    """Of any runs that the token is for; `status`, `attempts` and what follows from them are left out."""


class EnqueueTasks(Record):
    """Tasks, of each of which `group_size` rollouts are to be run."""

    model_config = example(run_id="run", tasks=[{"input": {"question": "How many boats are there?"}}])
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


class Enqueued(Record):
    """What became of an enqueue."""

    new: int
    """How many were not known before."""
    rollout_ids: list[str]
    """All of them, in order."""


class Rollouts(Record):
    """Rollouts, in the order they were enqueued."""

    rollouts: list[Rollout]
    next: str | None = None
    """Give it as `after` to get the rest; None if this was the last page."""


class RolloutIds(Record):
    """Which rollouts."""

    model_config = example(rollout_ids=["r1", "r2"])
    rollout_ids: Some[Name]


class Cancel(RolloutIds):
    """Which rollouts to cancel."""

    skip_unknown: bool = False
    """Leave out those that are not in the store; otherwise the first of them is refused."""


class Counts(Record):
    """How many rollouts there are of each step, split and status."""

    counts: list[RolloutCount]


class News(Record):
    """What a wait ended with."""

    news: bool
    """Whether what was waited for may have come; False when the time was up."""


class WaitFinished(Record):
    """For which rollouts to wait, and how long."""

    model_config = example(rollout_ids=["r1", "r2"], wait=30)
    rollout_ids: Some[Name]
    wait: Wait = 0.0
    """Seconds after which the answer comes in any case; ask again until `done`."""


class Finished(Record):
    """Those that are finished."""

    rollouts: list[Rollout]
    done: bool
    """Whether these are all."""


class Cancelled(Record):
    """What became of a cancellation."""

    cancelled: int
    """How many were not finished yet."""


class LeaseRequest(Record):
    """What a worker asks for."""

    model_config = example(worker="w1", limit=4, seconds=60, wait=30, agent="writer")
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

    key: str = Field(examples=[KEY])
    """The proof of it: every further request about this attempt bears it."""
    attempt: Attempt
    timeout: float | None = None
    """Seconds after which the run wants an attempt ended, as a failure; None for no limit."""
    environment: dict[str, str] | None = None
    """The app's environment variables, `OPENAI_BASE_URL`, `OPENAI_API_KEY` and `LIGHTNING_REWARD_URL`
    among them: calls made with these are answered by the policy and recorded. None if no
    gateway answers: give the lease back, unless the app needs none."""


class Leases(Record):
    """The rollouts that were leased; none if there was nothing to do."""

    leases: list[Leased]


class Heartbeat(Record):
    """Which leases to extend."""

    model_config = example(keys=[KEY], seconds=60, wait=20)
    keys: Keys
    seconds: Seconds = 60.0
    """From now on."""
    wait: Wait = 0.0
    """With all still held: seconds to wait for a cancellation, so that a worker hears of it at once; at
    most half of `seconds`, so that none is lost by it."""


class Beat(Record):
    """What came of a heartbeat."""

    held: list[Key]
    """The keys of leases that were extended."""
    lost: list[Key]
    """The keys of those that ended, were cancelled or went to others: stop working on them."""


class Finish(Record):
    """How an attempt ended: with `reward` it succeeded, with `error` it failed, with both it failed for
    good and has that reward. With neither it succeeded: its final reward was posted before, or a judge
    gives it."""

    model_config = example(key=KEY, reward=1.0)
    key: Key
    """For an attempt that an admin names without its key, no rules of the run's trainer are applied."""
    reward: float | None = None
    error: str | None = None


class Release(Record):
    """Which leases to give back unfinished."""

    model_config = example(keys=[KEY])
    keys: Keys


class Reclaim(Record):
    """What a worker held that died."""

    model_config = example(worker="w1")
    worker: Name
    run_id: str | None = None
    """Only of this run; with a token of one run it is that run."""


class Reclaimed(Record):
    """The rollouts that are queued again."""

    released: int
    """How many."""


class Nothing(Record):
    """It is done."""
