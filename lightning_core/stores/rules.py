"""The rules of each operation on a rollout: pure functions, the same for every store.

A store finds the rollout, applies the rule, and writes the result in one atomic step.
So the rules stand in one place and the stores differ only in how they keep and find things.

Attempt numbers are never used twice, so (rollout id, number) names one try for ever: whoever holds
an older number has lost the lease, and calls recorded late can't be taken for those of a newer try.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from lightning_core.errors import DataError, LeaseLostError, NotFoundError, RewardError
from lightning_core.records.types import (
    REWARD_RANGE,
    Alert,
    Attempt,
    Call,
    Credited,
    Event,
    Member,
    Metrics,
    Record,
    ResourceVersion,
    Reward,
    Rollout,
    RolloutCount,
    Run,
    Span,
    Split,
    Status,
    Task,
    is_reward,
)

LEASE_EXPIRED = "lease expired"
LONGEST_ID = 512
"""Characters."""
_SHOWN_OF_ID = 64
_SURROGATE = re.compile("[\ud800-\udfff]")
_WHOLE: Mapping[type[Record], tuple[str, ...]] = MappingProxyType(
    {Call: ("agent",), ResourceVersion: ("uri", "author")}
)
"""Texts that are no remarks: half a character in them would be another name, or another prompt."""
_IDS: Mapping[type[Record], tuple[str, ...]] = MappingProxyType(
    {
        Run: ("id",),
        Rollout: ("id", "run_id", "group_id"),
        Task: ("id",),
        Call: ("id",),
        Reward: ("id",),
        Credited: ("rollout_id", "call_id"),
        ResourceVersion: ("run_id", "name"),
        Metrics: ("run_id",),
        Member: ("run_id", "name"),
        Alert: ("run_id", "id"),
    }
)


def started(rollout: Rollout) -> Rollout:
    """The rollout once a worker has leased it."""
    return rollout.model_copy(update={"status": Status.RUNNING, "attempts": rollout.attempts + 1})


def expired(rollout: Rollout, worker: str | None, now: float) -> Rollout:
    """The rollout after its lease ran out: queued again, or failed on its last attempt."""
    if rollout.attempts < rollout.max_attempts:
        return rollout.model_copy(update={"status": Status.QUEUED})
    error = f"{LEASE_EXPIRED}: worker {worker!r} stopped answering on attempt {rollout.attempts}"
    return _ended(rollout, Status.FAILED, now, error=error)


def released(rollout: Rollout) -> Rollout:
    """The rollout after its attempt was given back: queued, with as many attempts left as before."""
    return rollout.model_copy(update={"status": Status.QUEUED, "max_attempts": rollout.max_attempts + 1})


def cancelled(rollout: Rollout, now: float) -> Rollout:
    """The rollout after it was cancelled."""
    return _ended(rollout, Status.CANCELLED, now, error=rollout.error)


def holds(attempt: Attempt, rollout: Rollout | None) -> bool:
    """Whether the attempt is the rollout's running one."""
    return rollout is not None and rollout.status is Status.RUNNING and rollout.attempts == attempt.number


def finished(
    attempt: Attempt,
    rollout: Rollout | None,
    *,
    reward: float | None,
    error: str | None,
    given: float | None,
    now: float,
) -> Rollout:
    """The rollout after its attempt ended; the very same object if this finish is a repetition.

    `given` is the last final reward that was added in the attempt, for a finish with neither of the two.
    Raises LeaseLostError if the attempt is not the running one.
    """
    if reward is not None:
        check_reward(attempt.rollout.id, reward)
    if rollout is not None and _repeats(attempt, rollout, reward, error):
        return rollout
    if rollout is None or not holds(attempt, rollout):
        raise _lost(attempt, rollout)
    if error is None:
        return _ended(rollout, Status.SUCCEEDED, now, reward=given if reward is None else reward)
    if reward is None and rollout.attempts < rollout.max_attempts:
        return rollout.model_copy(update={"status": Status.QUEUED, "error": error})
    return _ended(rollout, Status.FAILED, now, reward=reward, error=error)


def final_reward(rollout: Rollout, reward: float, now: float) -> Reward:
    """Returns the reward to record beside a rollout that just finished."""
    return Reward(
        rollout_id=rollout.id,
        attempt=rollout.attempts,
        value=reward,
        source="app" if rollout.status is Status.SUCCEEDED else "penalty",
        created_at=now,
    )


def all_found(rollout_ids: Iterable[str], known: Mapping[str, Rollout]) -> list[Rollout]:
    """The rollouts under these ids, in their order. Raises NotFoundError for the first that is unknown."""
    found = []
    for rollout_id in rollout_ids:
        rollout = known.get(rollout_id)
        if rollout is None:
            raise NotFoundError(f"no rollout {rollout_id!r} in this store")
        found.append(rollout)
    return found


def wanted(step: int | None, status: Status | None, split: str | None) -> dict[str, int | str]:
    """Returns the filters of a listing, the most selective first: it is looked up by that one."""
    given = {"step": step, "status": status and status.value, "split": split}
    return {name: value for name, value in given.items() if value is not None}


def unknown_place(rollout_id: str, run_id: str, *, known: bool) -> NotFoundError:
    """The error of a page that is to begin or end at a rollout which the run does not have, or, if that is
    known, which has no reward."""
    if known:
        return NotFoundError(
            f"rollout {rollout_id!r} has no reward, so no page by reward begins or ends at it"
        )
    return NotFoundError(f"no rollout {rollout_id!r} in run {run_id!r}, where the page is to begin or end")


def counted(step: int, split: Split, status: Status, rewards: Sequence[float | None]) -> RolloutCount:
    """The count of rollouts that agree in these, given the reward of each."""
    given = [reward for reward in rewards if reward is not None]
    return RolloutCount(
        step=step,
        split=split,
        status=status,
        count=len(rewards),
        rewarded=len(given),
        reward=math.fsum(given),
    )


def check_running(record: Reward | Call, rollout: Rollout | None) -> None:
    """Raise unless the reward or call is of its rollout's running attempt."""
    if rollout is None:
        raise NotFoundError(f"rollout {record.rollout_id!r} is not in the store")
    if rollout.status is not Status.RUNNING or rollout.attempts != record.attempt:
        kind = "rewards" if isinstance(record, Reward) else "calls"
        raise LeaseLostError(
            f"attempt {record.attempt} of rollout {rollout.id!r} has ended and takes no more {kind} (the "
            f"rollout is {rollout.status.value} after {rollout.attempts} attempts); send them before the "
            "function given to Trainer.fit returns, or a worker of another language finishes"
        )


def check_reward(rollout_id: str, value: float) -> None:
    """Raise RewardError for a value that would poison every baseline it enters, or overflow in it."""
    if not is_reward(value):
        raise RewardError(f"reward {value!r} of rollout {rollout_id!r} is not {REWARD_RANGE}")


def check_ids(*records: Record) -> None:
    """Raise DataError for the first id in the records that not every store could keep and find again."""
    for record in records:
        for name in _IDS.get(type(record), ()):
            check_id(f"{type(record).__name__}.{name}", getattr(record, name))
        if isinstance(record, Rollout):
            check_ids(record.task)
        for name in _WHOLE.get(type(record), ()):
            text = getattr(record, name)
            if text is not None and _SURROGATE.search(text):
                raise DataError(
                    f"{type(record).__name__}.{name} {text[:_SHOWN_OF_ID]!r} holds half a surrogate pair: "
                    "give whole characters"
                )


def check_id(name: str, value: str | None) -> None:
    """The same for one; `name` says what it is the id of. None is no id."""
    if value is not None and (problem := _problem_of_id(value)) is not None:
        shown = value if len(value) <= _SHOWN_OF_ID else value[:_SHOWN_OF_ID] + "…"
        raise DataError(
            f"{name} {shown!r} {problem}; an id is text of 1 to {LONGEST_ID} characters without NUL"
        )


def _problem_of_id(value: str) -> str | None:
    if not value:
        return "is empty"
    if len(value) > LONGEST_ID:
        return f"has {len(value)} characters"
    if "\0" in value:
        return "holds a NUL character"
    return "holds half a surrogate pair" if _SURROGATE.search(value) else None


def event_id(event: Event) -> str:
    """Returns an id that is unique among an attempt's events: span ids are unique in their trace only."""
    return f"{event.trace_id}/{event.id}" if isinstance(event, Span) else event.id


def _ended(
    rollout: Rollout, status: Status, now: float, *, reward: float | None = None, error: str | None = None
) -> Rollout:
    return rollout.model_copy(update={"status": status, "reward": reward, "error": error, "finished_at": now})


def _repeats(attempt: Attempt, rollout: Rollout, reward: float | None, error: str | None) -> bool:
    if reward is None and error is None:  # it has what was given otherwise; a released rollout is queued
        return rollout.status is Status.SUCCEEDED and rollout.attempts == attempt.number
    over = rollout.status in (Status.SUCCEEDED, Status.FAILED, Status.QUEUED)
    return over and (rollout.attempts, rollout.reward, rollout.error) == (attempt.number, reward, error)


def _lost(attempt: Attempt, rollout: Rollout | None) -> LeaseLostError:
    if rollout is None:
        state = "is not in the store"
    else:
        state = f"is {rollout.status.value} after {rollout.attempts} attempts"
    return LeaseLostError(
        f"attempt {attempt.number} by {attempt.worker!r} no longer holds rollout {attempt.rollout.id!r}, "
        f"which {state}: drop its result"
    )
