"""The operations that change rollouts, in a transaction on the tables of any database.

The rules say what a rollout is afterwards; here is which rollouts are read, and in which order a transaction
reads, decides and writes. An operation raises our own errors before it writes anything.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol, TypeVar

from lightning_core.experience.returns import last_final, with_final
from lightning_core.records.types import (
    Attempt,
    Call,
    Metrics,
    Order,
    Record,
    Reward,
    Rollout,
    RolloutCount,
    Status,
)
from lightning_core.stores import rules
from lightning_core.stores.notifications import QUEUE, Topic, cancelled_of, finished_of
from lightning_core.stores.rows import Table

T = TypeVar("T", bound=Record)
Held = tuple[Rollout, str | None]
"""A rollout and the worker that holds it."""


@dataclass(frozen=True, slots=True)
class Page:
    """Which rollouts of a run are looked for (see `Store.find_rollouts`)."""

    run_id: str
    wanted: Mapping[str, int | str]
    """Fields and their values, the most selective first: by that they are looked up."""
    after: str | None = None
    before: str | None = None
    limit: int | None = None
    newest: bool = False
    order: Order = "enqueued"

    def first_key(self) -> tuple[str, ...]:
        """The field by which they are looked up, if there is one. By reward, only a step is."""
        return tuple(one for one in list(self.wanted)[:1] if self.order == "enqueued" or one == "step")


class Transaction(Protocol):
    """The operations of a database in a transaction. It sees its own changes."""

    held: dict[str, Held | None]
    """The rollouts that no other may change until the end, as they stand now; None for a missing one."""
    queue: Iterator[Rollout] | None
    """The next queued rollouts, for all leases of the transaction; None if each is to look itself."""

    def fetch(self, rollout_ids: Sequence[str]) -> dict[str, Held]:
        """Rollouts that no other may change from now on."""

    def find(self, rollout_ids: Iterable[str]) -> dict[str, Rollout]:
        """The rollouts that are stored under these ids, by id."""

    def statuses(self, rollout_ids: Iterable[str]) -> dict[str, Status]:
        """The same, without reading them whole."""

    def page(self, page: Page) -> list[Rollout]:
        """Rollouts of a run."""

    def count(self, run_id: str) -> list[RolloutCount]:
        """How many there are of each step, split and status."""

    def work(self, run_id: str | None) -> tuple[bool, float | None]:
        """Whether a lease would find anything, and the seconds until the next lease runs out."""

    def due(self, limit: int, run_id: str | None) -> list[Rollout]:
        """End the leases that ran out; the next queued rollouts then, which no other may change."""

    def leased_by(self, worker: str) -> list[str]:
        """The ids of the rollouts that the worker holds."""

    def enqueue(self, rollouts: Sequence[Rollout]) -> Callable[[], int]:
        """Add those whose id is new. How many were is asked for last, as are all answers of this kind."""

    def put(self, rollouts: Sequence[Rollout], worker: str | None, seconds: float | None) -> None:
        """Write what can change of the rollouts, and lease them to the worker, if there is one."""

    def put_call(self, call: Call, *, running: bool) -> Callable[[], None] | None:
        """As `Store.add_call`."""

    def add_rewards(self, rewards: Sequence[Reward]) -> None:
        """Record those that are not stored yet."""

    def is_stored(self, reward: Reward) -> bool:
        """Whether a reward of its id is; one without an id is always another one."""

    def rewards(self, rollout_id: str, attempt: int) -> list[Reward]:
        """In the order they were added."""

    def select(self, table: Table[T], **wanted: str) -> list[T]:
        """The rows with these values in the first columns of the key, in the order they were added."""

    def metrics(self, run_id: str, since: int | None, limit: int | None) -> list[Metrics]:
        """Returns the metrics by rising step, from `since` on, at most `limit`."""

    def of_last_attempts(self, table: Table[T], rollout_ids: Sequence[str]) -> dict[str, list[T]]:
        """Returns the records of each rollout's last attempt, in the order they were added."""

    def upsert(self, table: Table[T], records: Iterable[T]) -> None:
        """Add the records, each in place of the one with its key."""

    def add(self, table: Table[T], records: Sequence[T]) -> Callable[[], int]:
        """Add those whose key is new; how many were."""

    def remove(self, table: Table[Any], *key: str) -> None:
        """Remove the record with that key, if there is one."""

    def tell(self, topics: Iterable[Topic]) -> None:
        """Tell all users of the store of these, once the transaction is committed."""


def lock(to: Transaction, rollout_ids: Iterable[str]) -> dict[str, Held]:
    """Returns those of the rollouts that are stored; locks them until the end of the transaction."""
    ids = list(dict.fromkeys(rollout_ids))
    if missing := [name for name in ids if name not in to.held]:
        found = to.fetch(missing)
        to.held |= {name: found.get(name) for name in missing}
    return {name: one for name in ids if (one := to.held[name]) is not None}


def save(to: Transaction, rollouts: Sequence[Rollout]) -> None:
    """Write rollouts that no worker holds any more, and tell of it."""
    if rollouts:
        to.held |= {one.id: (one, None) for one in rollouts}
        to.put(rollouts, None, None)
        to.tell(finished_of(one.id) if one.status.finished else QUEUE for one in rollouts)


def hold(to: Transaction, rollouts: Sequence[Rollout], worker: str, seconds: float) -> list[Attempt]:
    """Lease running rollouts to the worker."""
    if rollouts:
        to.held |= {one.id: (one, worker) for one in rollouts}
        to.put(rollouts, worker, seconds)
    until = time.time() + seconds
    return [Attempt(rollout=one, number=one.attempts, worker=worker, lease_until=until) for one in rollouts]


def lease(to: Transaction, worker: str, limit: int, seconds: float, run_id: str | None) -> list[Attempt]:
    """Start the next queued rollouts of that run (of all runs)."""
    queue = to.queue or iter(to.due(limit, run_id))
    now = (held[0] if (held := to.held.get(one.id)) else one for one in queue)
    waiting = (one for one in now if one.status is Status.QUEUED)
    return hold(to, [rules.started(one) for one in islice(waiting, limit)], worker, seconds)


def running(to: Transaction, attempts: Sequence[Attempt]) -> list[Held]:
    """The rollouts of those attempts that are their running one."""
    found = lock(to, [one.rollout.id for one in attempts])
    pairs = [(one, found.get(one.rollout.id)) for one in attempts]
    return [held for one, held in pairs if held and rules.holds(one, held[0])]


def heartbeat(to: Transaction, attempts: Sequence[Attempt], seconds: float) -> list[Attempt]:
    """Extend the leases of the running ones among the attempts; these, with their new leases."""
    by_worker: dict[str, list[Rollout]] = {}
    for rollout, worker in running(to, attempts):
        by_worker.setdefault(worker or "", []).append(rollout)
    return [one for worker, some in by_worker.items() for one in hold(to, some, worker, seconds)]


def finish(to: Transaction, attempt: Attempt, reward: float | None, error: str | None) -> Rollout:
    """End an attempt, and record the reward it has ended with."""
    now, name, number = time.time(), attempt.rollout.id, attempt.number
    before = lock(to, [name]).get(name, (None, None))[0]
    given = None
    if reward is None and error is None:
        given = last_final(to.rewards(name, number), number)
    after = rules.finished(attempt, before, reward=reward, error=error, given=given, now=now)
    if after is not before:
        save(to, [after])
        if reward is not None:
            to.add_rewards([rules.final_reward(after, reward, now)])
    return after


def cancel(to: Transaction, rollout_ids: Sequence[str]) -> int:
    """Cancel the unfinished ones among the rollouts; returns how many."""
    found = lock(to, rollout_ids).values()
    unfinished = [held for held in found if not held[0].status.finished]
    now = time.time()
    save(to, [rules.cancelled(rollout, now) for rollout, _ in unfinished])
    to.tell(cancelled_of(worker) for _, worker in unfinished if worker is not None)
    return len(unfinished)


def release(to: Transaction, attempts: Sequence[Attempt]) -> None:
    """Give the running ones among the attempts back."""
    save(to, [rules.released(rollout) for rollout, _ in running(to, attempts)])


def reclaim(to: Transaction, worker: str, run_id: str | None) -> int:
    """Release everything that the worker holds, of one run or of all; returns how many rollouts that are."""
    held = lock(to, to.leased_by(worker)).values()
    mine = [one for one, holder in held if one.status is Status.RUNNING and holder == worker]
    found = [one for one in mine if run_id in (None, one.run_id)]
    save(to, [rules.released(one) for one in found])
    return len(found)


def add_rewards(to: Transaction, rewards: Sequence[Reward], *, running: bool) -> None:
    """Record those that are not stored yet; with `running` all of these must be of running attempts, else the
    final ones of whole rollouts that have succeeded count at once."""
    rollouts = lock(to, [one.rollout_id for one in rewards]) if running else {}
    for one in rewards if running else ():
        rollout = rollouts.get(one.rollout_id, (None, None))[0]
        runs = rollout and rollout.status is Status.RUNNING and rollout.attempts == one.attempt
        if not runs and not to.is_stored(one):
            rules.check_running(one, rollout)
    ended = {} if running else lock(to, finals(rewards))
    to.add_rewards(rewards)
    before = [one for one, _ in ended.values() if one.status is Status.SUCCEEDED]
    after = [with_final(one, to.rewards(one.id, one.attempts)) for one in before]
    save(to, [new for old, new in zip(before, after, strict=True) if new != old])


def finals(rewards: Sequence[Reward]) -> list[str]:
    """The rollouts that get a final reward of their own, no agent's."""
    return [one.rollout_id for one in rewards if one.kind == "final" and one.agent is None]
