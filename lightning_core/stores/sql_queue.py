"""Finding and changing rollouts, their calls and rewards in SQL tables, inside a transaction of somebody's.

The rules say what a rollout is afterwards; here is which rows are looked at, each by an index, and locked
while a rule decides over them. Rows are locked in the order of `seq`, so operations seldom wait in a circle.
All rows of an answer are fetched before one is read: one that can't be would keep the statement open.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from operator import attrgetter
from typing import Any, Protocol

from lightning_core.stores import rules
from lightning_core.stores.notifications import QUEUE, Topic, cancelled_of, finished_of
from lightning_core.stores.rows import CALLS, REWARDS, ROLLOUTS, Row
from lightning_core.types import Attempt, Call, Reward, Rollout, Status

SAVE = (
    "UPDATE rollouts SET status = ?, attempts = ?, max_attempts = ?, reward = ?, error = ?, finished_at = ?,"
    " worker = NULL, lease_until = NULL WHERE id = ?"
)
SAVED = attrgetter("attempts", "max_attempts", "reward", "error", "finished_at", "id")
START = (
    "UPDATE rollouts SET status = 'running', attempts = ?, worker = ?, lease_until = {now} + ? WHERE id = ?"
)
EXTEND = "UPDATE rollouts SET lease_until = {now} + ? WHERE id = ?"
LEASED = "rollouts {index} rollouts_leased WHERE status = 'running'"
LATE = f"{LEASED} AND lease_until <= {{now}}"
PUT_CALL = (
    f"INSERT INTO calls ({CALLS.columns}) {{values}} ON CONFLICT ({CALLS.key}) DO UPDATE SET {CALLS.replaced}"
    " WHERE calls.status <> 'completed'"
)
_MARKS = ", ".join("?" * (CALLS.columns.count(",") + 1))
PUT_ANY = PUT_CALL.format(values=f"VALUES ({_MARKS})")
PUT_RUNNING = PUT_CALL.format(
    values=f"SELECT {_MARKS} FROM rollouts WHERE id = ? AND attempts = ? AND status = 'running' {{share}}"
)
ADD_REWARD = f"{REWARDS.insert} ON CONFLICT (rollout_id, attempt, id) WHERE id IS NOT NULL DO NOTHING"
ALL = 2**62
"""More rows than a table can hold, for a LIMIT that is none."""


class Transaction(Protocol):
    """What is used of a connection. `{marks}` in the statements stand for words of the database."""

    held: dict[str, Rollout | None]
    """The rollouts whose rows are locked until the end, as they stand now; None for one that is not there."""

    queue: Iterator[Rollout] | None
    """The next queued rollouts, locked for all leases of the transaction; None if each is to look itself."""

    def rows(self, query: str, *values: Any) -> list[Row]:
        """The rows that a query finds."""

    def run(self, statement: str, rows: Iterable[Row]) -> None:
        """Run a statement with the values of each row."""

    def count(self, statement: str, rows: Iterable[Row]) -> Callable[[], int]:
        """The same; the number of rows it has changed is best asked for when others have run theirs."""

    def tell(self, topics: Iterable[Topic]) -> None:
        """Tell all users of the store of these, once the transaction is committed."""


def find(transaction: Transaction, rollout_ids: Iterable[str], rest: str = "") -> dict[str, Rollout]:
    """The rollouts that are stored under these ids, by id."""
    query = f"SELECT {ROLLOUTS.columns} FROM rollouts WHERE id {{among}} {rest}"
    return {row[0]: ROLLOUTS.value(row) for row in transaction.rows(query, list(rollout_ids))}


def lock(transaction: Transaction, rollout_ids: Iterable[str]) -> dict[str, Rollout]:
    """The same, locked until the end; those of all operations in a transaction are locked at once."""
    missing = [name for name in rollout_ids if name not in transaction.held]
    if missing:
        found = find(transaction, missing, "ORDER BY seq {lock}")
        transaction.held |= {name: found.get(name) for name in missing}
    return {name: one for name in rollout_ids if (one := transaction.held[name]) is not None}


def statuses(transaction: Transaction, rollout_ids: Iterable[str]) -> dict[str, Status]:
    """How the rollouts stand, without reading them whole."""
    query = "SELECT id, status FROM rollouts WHERE id {among}"
    return {row[0]: Status(row[1]) for row in transaction.rows(query, list(rollout_ids))}


def page(
    transaction: Transaction,
    run_id: str,
    wanted: Mapping[str, int | str],
    after: str | None,
    limit: int | None,
    newest: bool,
) -> list[Rollout]:
    """Rollouts of a run, by the index of the first thing they are wanted by."""
    place = 0 if after is None else _place(transaction, run_id, after)
    values = list(wanted.values())
    key, others = [*values[:1], run_id], values[1:]
    most = ALL if limit is None else limit
    rows = transaction.rows(paging(tuple(wanted), newest=newest), *key, place, *key, *others, most)
    found = [ROLLOUTS.value(row) for row in rows]
    return found[::-1] if newest else found


def paging(wanted: Sequence[str], *, newest: bool) -> str:
    """The query of `page`. It compares whole keys of an index and asks for its very order, so no planner has
    a cheaper way, whatever it believes of the table: by equality it might follow `seq` alone, past the
    rollouts of all runs. Its values: the key, the place, the key, what else is wanted, the limit."""
    key = [*wanted[:1], "run_id"]
    marks = ", ".join("?" * len(key))
    where = f"({', '.join(key)}, seq) > ({marks}, ?) AND ({', '.join(key)}) <= ({marks})"
    where += "".join(f" AND {column} = ?" for column in wanted[1:])
    order = ", ".join(f"{column} {'DESC' if newest else 'ASC'}" for column in (*key, "seq"))
    return f"SELECT {ROLLOUTS.columns} FROM rollouts WHERE {where} ORDER BY {order} LIMIT ?"


def _place(transaction: Transaction, run_id: str, rollout_id: str) -> int:
    found = transaction.rows("SELECT seq FROM rollouts WHERE id = ? AND run_id = ?", rollout_id, run_id)
    if not found:
        raise rules.unknown_after(rollout_id, run_id)
    return int(found[0][0])


def work(transaction: Transaction, run_id: str | None) -> tuple[bool, float | None]:
    """Whether a lease would find anything, and the seconds until the next lease runs out."""
    queue, given = queued(run_id)
    query = f"SELECT EXISTS (SELECT 1 FROM {queue}), (SELECT min(lease_until) FROM {LEASED}) - {{now}}"
    ((found, seconds),) = transaction.rows(query, *given)
    return bool(found) or (seconds is not None and seconds <= 0), seconds


def lease(
    transaction: Transaction, worker: str, limit: int, seconds: float, run_id: str | None
) -> list[Attempt]:
    """Start the next queued rollouts of that run (of all runs)."""
    queue = transaction.queue or iter(due(transaction, limit, run_id))
    now = (transaction.held.get(one.id) or one for one in queue)
    waiting = (one for one in now if one.status is Status.QUEUED)
    started = [rules.started(one) for one in islice(waiting, limit)]
    transaction.held |= {one.id: one for one in started}
    if started:
        transaction.run(START, [(one.attempts, worker, seconds, one.id) for one in started])
    until = time.time() + seconds
    return [attempt(one, worker, until) for one in started]


def due(transaction: Transaction, limit: int, run_id: str | None) -> list[Rollout]:
    """End the leases that ran out; the next queued rollouts then, which are locked."""
    rows = _next(transaction, limit, run_id)
    if not rows or rows[0][-1]:
        _expire(transaction)
        rows = _next(transaction, limit, run_id)
    return [ROLLOUTS.value(row) for row in rows]


def _next(transaction: Transaction, limit: int, run_id: str | None) -> list[Row]:
    """The next queued rollouts; the last column says whether a lease has run out, whose rollout may come
    before them."""
    queue, given = queued(run_id)
    query = (
        f"SELECT {ROLLOUTS.columns}, EXISTS (SELECT 1 FROM {LATE}) FROM {queue}"
        " ORDER BY priority DESC, seq LIMIT ? {skip}"
    )
    return transaction.rows(query, *given, limit)


def _expire(transaction: Transaction) -> None:
    query = f"SELECT {ROLLOUTS.columns}, worker FROM {LATE} ORDER BY seq {{skip}}"
    late = transaction.rows(query)
    save(transaction, [rules.expired(ROLLOUTS.value(row), row[-1], time.time()) for row in late])


def heartbeat(transaction: Transaction, attempts: Sequence[Attempt], seconds: float) -> list[Attempt]:
    """Extend the leases of the running ones among the attempts; these, with their new leases."""
    kept = held(transaction, attempts)
    if kept:
        transaction.run(EXTEND, [(seconds, rollout.id) for _, rollout in kept])
    until = time.time() + seconds
    return [attempt(rollout, one.worker, until) for one, rollout in kept]


def held(transaction: Transaction, attempts: Sequence[Attempt]) -> list[tuple[Attempt, Rollout]]:
    """Those of the attempts that are their rollout's running one, each with its rollout."""
    rollouts = lock(transaction, [one.rollout.id for one in attempts])
    pairs = [(one, rollouts.get(one.rollout.id)) for one in attempts]
    return [(one, rollout) for one, rollout in pairs if rollout and rules.holds(one, rollout)]


def finish(transaction: Transaction, attempt: Attempt, reward: float | None, error: str | None) -> Rollout:
    """End an attempt, and record the reward it has ended with."""
    now = time.time()
    before = lock(transaction, [attempt.rollout.id]).get(attempt.rollout.id)
    given = _last_final(transaction, attempt) if reward is None and error is None else None
    after = rules.finished(attempt, before, reward=reward, error=error, given=given, now=now)
    if after is not before:
        save(transaction, [after])
        if reward is not None:
            transaction.run(REWARDS.insert, [REWARDS.row(rules.final_reward(after, reward, now))])
    return after


def _last_final(transaction: Transaction, attempt: Attempt) -> float | None:
    query = f"SELECT {REWARDS.columns} FROM rewards WHERE rollout_id = ? AND attempt = ? ORDER BY seq"
    found = transaction.rows(query, attempt.rollout.id, attempt.number)
    return rules.last_final(map(REWARDS.value, found), attempt.number)


def cancel(transaction: Transaction, rollout_ids: Sequence[str]) -> int:
    """Cancel the unfinished ones among the rollouts; returns how many."""
    query = f"SELECT {ROLLOUTS.columns}, worker FROM rollouts WHERE id {{among}} ORDER BY seq {{lock}}"
    found = [(ROLLOUTS.value(row), row[-1]) for row in transaction.rows(query, list(rollout_ids))]
    unfinished = [(rollout, worker) for rollout, worker in found if not rollout.status.finished]
    now = time.time()
    save(transaction, [rules.cancelled(rollout, now) for rollout, _ in unfinished])
    transaction.tell(cancelled_of(worker) for _, worker in unfinished if worker is not None)
    return len(unfinished)


def reclaim(transaction: Transaction, worker: str, run_id: str | None) -> int:
    """Release everything that the worker holds, of one run or of all; returns how many rollouts that are."""
    where = "rollouts {index} rollouts_held WHERE status = 'running' AND worker = ?"
    query = f"SELECT {ROLLOUTS.columns} FROM {where} ORDER BY seq {{lock}}"
    held = [ROLLOUTS.value(row) for row in transaction.rows(query, worker)]
    found = [rollout for rollout in held if run_id in (None, rollout.run_id)]
    save(transaction, [rules.released(rollout) for rollout in found])
    return len(found)


def save(transaction: Transaction, rollouts: Sequence[Rollout]) -> None:
    """Write what can change of rollouts that no worker holds any more, and tell of it."""
    transaction.held |= {one.id: one for one in rollouts}
    if rollouts:
        transaction.run(SAVE, [(one.status.value, *SAVED(one)) for one in rollouts])
        transaction.tell(finished_of(one.id) if one.status.finished else QUEUE for one in rollouts)


def put_call(transaction: Transaction, call: Call, *, running: bool) -> Callable[[], None]:
    """Record a call: one statement, unless one completed under its id or its attempt has ended."""
    row = CALLS.row(call)
    statement, values = (PUT_RUNNING, (*row, *row[:2])) if running else (PUT_ANY, row)
    counted = transaction.count(statement, [values])

    def look() -> None:
        if counted():
            return None
        query = f"SELECT {CALLS.columns} FROM calls WHERE rollout_id = ? AND attempt = ? AND id = ?"
        known = next(iter(transaction.rows(query, *row[:3])), None)
        if known is None or CALLS.value(known).status != "completed":
            return rules.check_running(call, find(transaction, [row[0]]).get(row[0]))
        if call.status != "completed" or known == row:
            return None
        return put_call(transaction, rules.under_own_id(call), running=running)()

    return look


def add_rewards(transaction: Transaction, rewards: Sequence[Reward], *, running: bool) -> None:
    """Record those that are not stored yet; with `running` all of these must be of running attempts."""
    rollouts = lock(transaction, [one.rollout_id for one in rewards]) if running else {}
    for one in rewards if running else ():
        rollout = rollouts.get(one.rollout_id)
        runs = rollout and rollout.status is Status.RUNNING and rollout.attempts == one.attempt
        if not runs and not _is_stored(transaction, one):
            rules.check_running(one, rollout)
    transaction.run(ADD_REWARD, [REWARDS.row(one) for one in rewards])


def _is_stored(transaction: Transaction, reward: Reward) -> bool:
    query = "SELECT 1 FROM rewards WHERE rollout_id = ? AND attempt = ? AND id = ?"
    key = rules.reward_key(reward)
    return key is not None and bool(transaction.rows(query, *key))


def attempt(rollout: Rollout, worker: str, lease_until: float) -> Attempt:
    return Attempt(rollout=rollout, number=rollout.attempts, worker=worker, lease_until=lease_until)


def queued(run_id: str | None) -> tuple[str, tuple[str, ...]]:
    """From where rollouts of a run, or of all, may be leased, by which index; with its values."""
    if run_id is None:
        return "rollouts {index} rollouts_queued WHERE status = 'queued'", ()
    return "rollouts {index} rollouts_queued_of_run WHERE status = 'queued' AND run_id = ?", (run_id,)
