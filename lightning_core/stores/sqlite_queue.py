"""Finding and changing rollouts and their rewards in the SQLite schema, inside somebody's transaction.

The rules say what becomes of a rollout; here is only which rows are looked at, each by an index.
All are fetched before one is read: one that can't be would leave the statement open, the reader in the past.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Mapping, Sequence

from lightning_core.stores import clock, rules
from lightning_core.stores.packing import dump_json
from lightning_core.stores.rows import (
    CALL,
    CALL_KEY,
    REPLACED_OF_CALL,
    REWARD,
    ROLLOUT,
    STATUS_OF_CALL,
    call_row,
    to_reward,
    to_rollout,
)
from lightning_core.types import Attempt, Call, Reward, Rollout, Status

SAVE = (
    "UPDATE rollouts SET status = ?, attempts = ?, max_attempts = ?, reward = ?, error = ?, finished_at = ?,"
    " worker = NULL, lease_until = NULL, lease_clock = NULL, lease_end = NULL WHERE id = ?"
)
HOLD = (
    "UPDATE rollouts SET worker = ifnull(?, worker), lease_until = ?, lease_clock = ?, lease_end = ?"
    " WHERE id = ?"
)
LATE = (  # a lease that was made before the machine was started again has only the time of day
    "status = 'running' AND (lease_clock = ? AND lease_end <= ? OR lease_clock <> ? AND lease_until <= ?)"
)
PUT_CALL = (
    f"INSERT INTO calls ({CALL}) SELECT {', '.join('?' * (CALL.count(',') + 1))} WHERE ? OR EXISTS"
    " (SELECT 1 FROM rollouts WHERE id = ? AND attempts = ? AND status = 'running')"
    f" ON CONFLICT ({CALL_KEY}) DO UPDATE SET {REPLACED_OF_CALL} WHERE calls.status <> 'completed'"
)
FIND_CALL = f"SELECT {CALL} FROM calls WHERE rollout_id = ? AND attempt = ? AND id = ?"
AMONG = "id IN (SELECT value FROM json_each(?))"
MOST_ENDS = 2**31
"""SQLite keeps `user_version` in 32 bits."""


def find(connection: sqlite3.Connection, rollout_ids: Iterable[str]) -> dict[str, Rollout]:
    """The rollouts that are stored under these ids, by id."""
    query = f"SELECT {ROLLOUT} FROM rollouts WHERE {AMONG}"
    found = connection.execute(query, (json_list(rollout_ids),)).fetchall()
    return {row[0]: to_rollout(row) for row in found}


def statuses(connection: sqlite3.Connection, rollout_ids: Iterable[str]) -> dict[str, Status]:
    """How the rollouts stand, without reading them whole."""
    query = f"SELECT id, status FROM rollouts WHERE {AMONG}"
    return {row[0]: Status(row[1]) for row in connection.execute(query, (json_list(rollout_ids),))}


def page(
    connection: sqlite3.Connection,
    run_id: str,
    wanted: Mapping[str, int | str],
    after: str | None,
    limit: int | None,
    newest: bool,
) -> list[Rollout]:
    """Rollouts of a run, by the index of the first thing they are wanted by."""
    where = "".join(f" AND {column} = ?" for column in wanted)
    query = (
        f"SELECT {ROLLOUT} FROM rollouts INDEXED BY rollouts_of_{next(iter(wanted), 'run')}"
        f" WHERE run_id = ?{where} AND seq > ? ORDER BY seq {'DESC' if newest else ''} LIMIT ?"
    )
    place = 0 if after is None else _place(connection, run_id, after)
    values = (run_id, *wanted.values(), place, -1 if limit is None else limit)
    found = [to_rollout(row) for row in connection.execute(query, values)]
    return found[::-1] if newest else found


def _place(connection: sqlite3.Connection, run_id: str, rollout_id: str) -> int:
    query = "SELECT seq FROM rollouts WHERE id = ? AND run_id = ?"
    row = connection.execute(query, (rollout_id, run_id)).fetchone()
    if row is None:
        raise rules.unknown_after(rollout_id, run_id)
    return int(row[0])


def held(connection: sqlite3.Connection, attempts: Sequence[Attempt]) -> list[tuple[Attempt, Rollout]]:
    """Those of the attempts that are their rollout's running one, each with its rollout."""
    rollouts = find(connection, [attempt.rollout.id for attempt in attempts])
    pairs = [(attempt, rollouts.get(attempt.rollout.id)) for attempt in attempts]
    return [(attempt, rollout) for attempt, rollout in pairs if rollout and rules.holds(attempt, rollout)]


def held_by(connection: sqlite3.Connection, worker: str) -> list[Rollout]:
    """The running rollouts of that worker."""
    query = f"SELECT {ROLLOUT} FROM rollouts WHERE status = 'running' AND worker = ?"
    return [to_rollout(row) for row in connection.execute(query, (worker,)).fetchall()]


def workers(connection: sqlite3.Connection, rollout_ids: Iterable[str]) -> set[str]:
    """Who holds any of these rollouts."""
    query = f"SELECT DISTINCT worker FROM rollouts WHERE {AMONG} AND worker IS NOT NULL"
    return {row[0] for row in connection.execute(query, (json_list(rollout_ids),))}


def has_work(connection: sqlite3.Connection, run_id: str | None) -> bool:
    """Whether a lease would find anything: asked without the write lock, as idle workers ask often."""
    query = (
        f"SELECT EXISTS (SELECT 1 FROM rollouts WHERE {_queued_of(run_id)})"
        f" OR EXISTS (SELECT 1 FROM rollouts WHERE {LATE})"
    )
    (found,) = connection.execute(query, (*_given(run_id), *_now())).fetchone()
    return bool(found)


def queued(connection: sqlite3.Connection, run_id: str | None, limit: int) -> list[Rollout]:
    """The next queued rollouts of that run (of all runs)."""
    query = f"SELECT {ROLLOUT} FROM rollouts WHERE {_queued_of(run_id)} ORDER BY priority DESC, seq LIMIT ?"
    return [to_rollout(row) for row in connection.execute(query, (*_given(run_id), limit)).fetchall()]


def expire(connection: sqlite3.Connection) -> list[str]:
    """End the leases that ran out; returns the rollouts that have failed by it."""
    query = f"SELECT {ROLLOUT}, worker FROM rollouts WHERE {LATE} ORDER BY seq"
    rows = connection.execute(query, _now()).fetchall()
    rollouts = [rules.expired(to_rollout(row), row[-1], time.time()) for row in rows]
    save(connection, rollouts)
    return [rollout.id for rollout in rollouts if rollout.status.finished]


def hold(
    connection: sqlite3.Connection, rollouts: Sequence[Rollout], seconds: float, worker: str | None = None
) -> float:
    """Lease the rollouts for `seconds` to `worker`, or to who holds them; until when, in Unix seconds."""
    lease = time.time() + seconds, clock.clock_name(), clock.seconds() + seconds
    connection.executemany(HOLD, [(worker, *lease, rollout.id) for rollout in rollouts])
    return lease[0]


def save(connection: sqlite3.Connection, rollouts: Sequence[Rollout]) -> None:
    """Write what can change of the rollouts, with no lease."""
    changed = [
        (
            rollout.status.value,
            rollout.attempts,
            rollout.max_attempts,
            rollout.reward,
            rollout.error,
            rollout.finished_at,
            rollout.id,
        )
        for rollout in rollouts
    ]
    connection.executemany(SAVE, changed)
    if any(rollout.status.finished for rollout in rollouts):
        connection.execute(f"PRAGMA user_version = {(ends(connection) + 1) % MOST_ENDS}")


def ends(connection: sqlite3.Connection) -> int:
    """A number that differs whenever rollouts have finished meanwhile, in whatever process.

    It stands in the file's header, so who waits for thousands of rollouts reads that and no row.
    """
    (number,) = connection.execute("PRAGMA user_version").fetchone()
    return int(number)


def last_final(connection: sqlite3.Connection, attempt: Attempt) -> float | None:
    """The last final reward that was added in that attempt."""
    query = f"SELECT {REWARD} FROM rewards WHERE rollout_id = ? AND attempt = ? ORDER BY rowid"
    found = connection.execute(query, (attempt.rollout.id, attempt.number)).fetchall()
    return rules.last_final(map(to_reward, found), attempt.number)


def known_rewards(connection: sqlite3.Connection, rewards: Sequence[Reward]) -> set[rules.RewardKey]:
    """The keys of those rewards that are stored already."""
    query = "SELECT 1 FROM rewards WHERE rollout_id = ? AND attempt = ? AND id = ?"
    keys = {key for reward in rewards if (key := rules.reward_key(reward)) is not None}
    return {key for key in keys if connection.execute(query, key).fetchone()}


def put_call(connection: sqlite3.Connection, call: Call, *, running: bool) -> None:
    """Record a call: one statement, unless one completed under its id or its attempt has ended."""
    while True:
        row = call_row(call)
        if connection.execute(PUT_CALL, (*row, not running, *row[:2])).rowcount:
            return None
        known = connection.execute(FIND_CALL, row[:3]).fetchone()
        if known is None or known[STATUS_OF_CALL] != "completed":
            rollout = find(connection, [row[0]]).get(row[0])
            return rules.check_running(call, rollout)
        if call.status != "completed" or known == row:
            return None
        call = rules.under_own_id(call)


def json_list(values: Iterable[str]) -> str:
    """Any number of values as one argument, for `json_each`."""
    return dump_json(list(values)).decode()


def _now() -> tuple[str, float, str, float]:
    """The values of `LATE`."""
    name = clock.clock_name()
    return name, clock.seconds(), name, time.time()


def _queued_of(run_id: str | None) -> str:
    return "status = 'queued'" if run_id is None else "status = 'queued' AND run_id = ?"


def _given(run_id: str | None) -> tuple[str, ...]:
    return () if run_id is None else (run_id,)
