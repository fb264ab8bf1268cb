"""Rollouts from the side of those who want them run: enqueue, look, wait, cancel."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Request
from pydantic import Field, JsonValue
from starlette.responses import Response

from lightning_core.api.access import Admin, Client, run_prefix
from lightning_core.api.fields import MOST_RECORDS, NEXT, FieldError, Name, Some, Wait, answer, example
from lightning_core.api.routing import JsonRoute, ListPage, reply, wait_with
from lightning_core.records.types import (
    Integer,
    Order,
    Record,
    Rollout,
    RolloutCount,
    Sampling,
    Split,
    Status,
    Task,
)

router = APIRouter(tags=["rollouts"], route_class=JsonRoute)


# bodies ---------------------------------------------------------------------------------------------
_TASK: Final[dict[str, JsonValue]] = {"input": {"question": "How many boats are there?"}}
_OF_ENDED: Final = ("reward", "error", "finished_at")


class Enqueue(Record):
    """Rollouts to run."""

    model_config = example(
        rollouts=[{"id": "r1", "run_id": "run", "task": _TASK, "group_id": "g1", "step": 0}]
    )
    rollouts: Some[Rollout]
    """Rollouts of any runs that the token is for; `status`, `attempts` and fields that follow from them are
    left out."""


class EnqueueTasks(Record):
    """Tasks, of each of which `group_size` rollouts are to be run."""

    model_config = example(run_id="run", tasks=[_TASK])
    run_id: Name
    tasks: Some[Task]
    step: Integer = 0
    """Rollout ids follow from run, step and task, and from policy version and sampling if they are given:
    the same request sent twice enqueues nothing twice."""
    group_size: int = Field(default=1, ge=1, le=1024)
    sampling: Sampling = Sampling()
    policy_version: Integer | None = None
    priority: Integer = 0
    max_attempts: int = Field(default=1, ge=1, le=2**63 - 1)


class RolloutIds(Record):
    """Which rollouts."""

    model_config = example(rollout_ids=["r1", "r2"])
    rollout_ids: Some[Name]


class Cancel(RolloutIds):
    """Which rollouts to cancel."""

    skip_unknown: bool = False
    """Leave out those that are not in the store; otherwise the first of them is refused."""


class WaitFinished(RolloutIds):
    """For which rollouts to wait, and how long."""

    model_config = example(rollout_ids=["r1", "r2"], wait=30)
    wait: Wait = 0.0
    """Seconds after which the answer comes in any case; ask again until `done`."""


Enqueued = answer(
    "Enqueued",
    "The rollouts that were asked for.",
    new=(int, "How many were not known before."),
    rollout_ids=(list[str], "All of them, in order."),
)
Rollouts = answer(
    "Rollouts",
    "Rollouts, in the order they were enqueued or asked for.",
    rollouts=(list[Rollout], "One page of them."),
    next=NEXT,
)
Counts = answer(
    "Counts",
    "How many rollouts there are of each step, split and status.",
    counts=(list[RolloutCount], "By rising step."),
)
Finished = answer(
    "Finished",
    "Those that are finished.",
    rollouts=(list[Rollout], "In the order of the ids."),
    done=(bool, "Whether these are all."),
)
Cancelled = answer("Cancelled", "A cancellation.", cancelled=(int, "How many were not finished yet."))


# routes ---------------------------------------------------------------------------------------------
@router.post("/rollouts", response_model=Enqueued)
async def enqueue(body: Enqueue, caller: Client) -> Response:
    """Enqueue rollouts. Those whose id is known are left as they are, so a request may be sent again.

    An id begins with that of its run and a colon; an admin alone may enqueue others, also for a run that is
    not in the store yet.
    """
    check_new(body.rollouts)
    caller.check_names(body.rollouts)
    for run_id in dict.fromkeys(rollout.run_id for rollout in body.rollouts):
        caller.run(run_id)
        if not caller.admin:
            await caller.known_run(run_id)
    new = await caller.store.enqueue(body.rollouts)
    return reply({"new": new, "rollout_ids": [rollout.id for rollout in body.rollouts]})


@router.post("/tasks", response_model=Enqueued)
async def enqueue_tasks(body: EnqueueTasks, caller: Client) -> Response:
    """Enqueue a group of rollouts for each task, under ids that follow from run, step and task, and from
    policy version and sampling if they are given."""
    if len(body.tasks) * body.group_size > MOST_RECORDS:
        raise FieldError(
            "group_size",
            f"is {body.group_size}, for {len(body.tasks)} tasks: that is more than the {MOST_RECORDS} "
            "rollouts of one request; send fewer tasks at once",
        )
    await caller.known_run(body.run_id)
    rollouts = _planned(body)
    new = await caller.store.enqueue(rollouts)
    return reply({"new": new, "rollout_ids": [rollout.id for rollout in rollouts]})


def _planned(body: EnqueueTasks) -> list[Rollout]:
    group = f"{run_prefix(body.run_id)}x{body.step}{_way(body)}"
    return [
        Rollout(
            id=f"{group}-{task.id}-{place}",
            run_id=body.run_id,
            task=task,
            group_id=f"{group}-{task.id}",
            step=body.step,
            split=task.split,
            sampling=body.sampling,
            policy_version=body.policy_version,
            priority=body.priority,
            max_attempts=body.max_attempts,
        )
        for task in _distinct(body.tasks)
        for place in range(body.group_size)
    ]


def _way(body: EnqueueTasks) -> str:
    """A word for how the tasks are to be sampled; none for the usual way."""
    if (body.policy_version, body.sampling) == (None, Sampling()):
        return ""
    left_out = {"fork"} if body.sampling.fork is None else None  # so that ids are those before it was a field
    text = f"{body.policy_version} {body.sampling.model_dump_json(exclude=left_out)}"
    return f".{blake2b(text.encode(), digest_size=8).hexdigest()}"


def _distinct(tasks: Sequence[Task]) -> list[Task]:
    """Each task once. Raises FieldError for another one under the same id."""
    found: dict[str, Task] = {}
    for place, task in enumerate(tasks):
        if found.setdefault(task.id, task) != task:
            raise FieldError(
                f"tasks[{place}].id",
                f"is {task.id!r}, which a different task bears; give each an id of its own",
            )
    return list(found.values())


@router.get("/rollouts", response_model=Rollouts)
async def find_rollouts(
    run_id: str,
    caller: Client,
    page: Annotated[ListPage, Depends()],
    step: Integer | None = None,
    split: Split | None = None,
    status: Status | None = None,
    newest: bool = False,
    before: str | None = None,
    order: Order = "enqueued",
) -> Response:
    """Find rollouts of a run, in the order they were enqueued or by rising reward: the first ones, or with
    `newest` the last. `before` is a rollout before which the page is to end."""
    found = await caller.store.find_rollouts(
        caller.run(run_id),
        step=step,
        split=split,
        status=status,
        after=page.after,
        limit=page.limit + (not newest),
        newest=newest,
        before=before,
        order=order,
    )
    rollouts = found[: page.limit]
    following = rollouts[-1].id if len(found) > page.limit else None
    return reply({"rollouts": rollouts, "next": following})


@router.get("/rollouts/{rollout_id:path}", response_model=Rollout)
async def get_rollout(rollout_id: str, caller: Client) -> Response:
    """One rollout as it stands."""
    (rollout,) = await caller.rollouts([rollout_id])
    return reply(rollout)


@router.post("/rollouts/read", response_model=Rollouts)
async def read_rollouts(body: RolloutIds, caller: Client) -> Response:
    """These rollouts as they stand."""
    return reply({"rollouts": await caller.rollouts(body.rollout_ids), "next": None})


@router.get("/counts", response_model=Counts)
async def count_rollouts(run_id: str, caller: Client) -> Response:
    """How many rollouts of a run there are of each step, split and status, by rising step."""
    return reply({"counts": await caller.store.count_rollouts(caller.run(run_id))})


@router.post("/rollouts/wait", response_model=Finished)
async def wait_finished(body: WaitFinished, caller: Client, request: Request) -> Response:
    """Wait until all these rollouts are finished, or the time is up. It costs no polling."""
    await caller.rollouts(body.rollout_ids)
    await wait_with(request, caller.store.wait_finished(body.rollout_ids, body.wait))
    finished = await caller.store.wait_finished(body.rollout_ids, 0.0)
    done = len(finished) == len(body.rollout_ids)
    return reply({"rollouts": finished, "done": done})


@router.post("/rollouts/cancel", response_model=Cancelled)
async def cancel(body: Cancel, caller: Admin) -> Response:
    """Cancel the unfinished ones among these rollouts; their workers are told."""
    ids = await caller.known(body.rollout_ids, skip_unknown=body.skip_unknown)
    return reply({"cancelled": await caller.store.cancel(ids)})


def check_new(rollouts: Sequence[Rollout]) -> None:
    """Raise FieldError unless all are queued and were never tried."""
    for place, rollout in enumerate(rollouts):
        name = f"rollouts[{place}]"
        if rollout.status is not Status.QUEUED or rollout.attempts:
            raise FieldError(
                f"{name}.status", "can't be given: what is enqueued is queued, and was not tried"
            )
        if rollout.max_attempts < 1:
            raise FieldError(f"{name}.max_attempts", f"is {rollout.max_attempts}; give 1 or more")
        for field in _OF_ENDED:
            if getattr(rollout, field) is not None:
                raise FieldError(f"{name}.{field}", "can't be given: what is enqueued has not ended")
