"""An attempt from its lease to its end: what every rollout costs, so each step is one statement.

Where a rule is a plain step (a lease starts an attempt, a heartbeat needs the running one) the statement
is the rule. Where it decides, it decides in Python: over what the caller holds, written only where the
stored row is still just that; or else over the row, which is locked meanwhile, in a second round trip.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence

from psycopg import Connection, Cursor

from lightning_core.stores import postgres_queue as queue
from lightning_core.stores import rules
from lightning_core.stores.postgres_news import Channels
from lightning_core.stores.postgres_statements import (
    Notice,
    Operation,
    Shared,
    add,
    insert,
    select,
    transaction,
)
from lightning_core.stores.rows import (
    CALL,
    CALL_KEY,
    REPLACED_OF_CALL,
    REWARD,
    ROLLOUT,
    STATUS_OF_CALL,
    Row,
    attempt,
    call_row,
    reward_row,
    to_rollout,
)
from lightning_core.types import Attempt, Call, Reward, Rollout

PUT_CALL = (
    f"{{held}}INSERT INTO calls ({CALL}) SELECT {', '.join(['%b'] * (CALL.count(',') + 1))} {{of_held}}"
    f" ON CONFLICT ({CALL_KEY}) DO UPDATE SET {REPLACED_OF_CALL}, seq = excluded.seq"
    " WHERE calls.status <> 'completed'"
)
HELD = "SELECT 1 FROM rollouts WHERE id = %b AND attempts = %b AND status = 'running' FOR SHARE"
FIND_CALL = f"SELECT {CALL} FROM calls WHERE rollout_id = %b AND attempt = %b AND id = %b"


def leasing(
    worker: str, limit: int, seconds: float, run_id: str | None, channels: Channels
) -> Shared[list[Attempt]]:
    """Take up to `limit` queued rollouts for a worker, by falling priority, then in the order of arrival."""
    name, sent = secrets.token_hex(8), False

    def send(connection: Connection, *, in_time: bool = True) -> Cursor:
        nonlocal sent
        sent = True
        return _lease(connection, worker, name, limit, seconds, run_id, in_time=in_time)

    def alone(connection: Connection) -> list[Attempt]:
        if sent and (ours := _leased(connection, worker, name)):  # by a try whose answer was lost
            return ours
        if (taken := _taken(worker, send(connection))) is not None:
            return taken
        with transaction(connection):
            queue.expire(connection, channels)
            answer = send(connection, in_time=False)
        return _taken(worker, answer) or []

    return Shared(send, lambda answer: _taken(worker, answer), alone)


def keeping(attempts: Sequence[Attempt], seconds: float) -> Shared[list[Attempt]]:
    """Extend the leases of the running ones among the attempts; these, with their new leases."""

    def send(connection: Connection) -> Cursor:
        return _heartbeat(connection, attempts, seconds)

    def read(answer: Cursor) -> list[Attempt]:
        return _kept(attempts, answer)

    ids = [one.rollout.id for one in attempts]
    return Shared(send, read, lambda connection: read(send(connection)), ids)


def finishing(
    attempt: Attempt, reward: float | None, error: str | None, channels: Channels
) -> Operation[Rollout]:
    """End an attempt, and record the reward it has ended with."""
    held = attempt.rollout

    def send(connection: Connection) -> Cursor:
        """For a rollout that still is as the caller holds it."""
        after, final = _after(attempt, held, reward, error, None)
        return _end(connection, attempt, after, final, _notice(after, channels))

    def look(connection: Connection) -> Rollout:
        with transaction(connection):
            before, given = queue.last(connection, attempt)
            after, final = _after(attempt, before, reward, error, given)
            if after is not before:
                queue.save(connection, [after], [_notice(after, channels)])
                if final is not None:
                    add(connection, insert("rewards", REWARD), [reward_row(final)])
            return after

    def alone(connection: Connection) -> Rollout:
        return _ended(send(connection)) or look(connection)

    known = (reward is not None or error is not None) and rules.holds(attempt, held)
    return Shared(send, _ended, alone, [held.id]) if known else look


def recording(call: Call, *, running: bool) -> Shared[bool]:
    """Record a call; with `running` the attempt's row is held meanwhile, so that it can't end before."""

    def send(connection: Connection, *, wait: bool = False) -> Cursor:
        return _put_call(connection, call, running=running, wait=wait)

    def alone(connection: Connection) -> bool:
        nonlocal call
        while not send(connection, wait=True).rowcount:
            row = call_row(call)
            rollout = queue.find(connection, row[:1]).get(row[0]) if running else None
            found = select(connection, FIND_CALL, *row[:3])
            if found and found[0][STATUS_OF_CALL] == "completed":
                if call.status != "completed" or found[0] == row:
                    return True
                call = rules.under_own_id(call)
            elif running:
                rules.check_running(call, rollout)
        return True

    return Shared(send, lambda answer: True if answer.rowcount else None, alone)


def _put_call(connection: Connection, call: Call, *, running: bool, wait: bool) -> Cursor:
    """Insert a call or replace a try of it that has not completed. No row: one has, or its attempt is not the
    running one, or without `wait` is just being changed."""
    row = call_row(call)
    if not running:
        return connection.execute(PUT_CALL.format(held="", of_held=""), row)
    held = HELD + ("" if wait else " SKIP LOCKED")
    statement = PUT_CALL.format(held=f"WITH held AS MATERIALIZED ({held}) ", of_held="FROM held")
    return connection.execute(statement, (*row[:2], *row))


def _lease(
    connection: Connection,
    worker: str,
    name: str,
    limit: int,
    seconds: float,
    run_id: str | None,
    *,
    in_time: bool = True,
) -> Cursor:
    """Take up to `limit` queued rollouts under the lease `name`; with `in_time` only if no lease has run out,
    as what was held by it may come first. `_taken` reads the answer."""
    late = f"EXISTS (SELECT 1 FROM rollouts WHERE {queue.LATE})" if in_time else "false"
    statement = (  # a plain subquery might be run more than once, and take more each time
        f"WITH looked AS MATERIALIZED (SELECT {late} AS late),"
        f" queue AS MATERIALIZED (SELECT seq AS taken FROM rollouts WHERE {queue.queued_of(run_id)}"
        " AND NOT (SELECT late FROM looked) ORDER BY priority DESC, seq LIMIT %b FOR UPDATE SKIP LOCKED),"
        " held AS (UPDATE rollouts SET status = 'running', attempts = attempts + 1, worker = %b, lease = %b,"
        f" lease_until = {queue.NOW} + %b FROM queue WHERE seq = taken"
        f" RETURNING {queue.MINE}, lease_until, seq)"
        " SELECT held.*, late FROM looked LEFT JOIN held ON true"
    )
    values = (*queue.given(run_id), limit, worker, name, seconds)
    return connection.execute(statement, values, binary=True)


def _taken(worker: str, answer: Cursor) -> list[Attempt] | None:
    """What a lease took; None if another lease has run out, so that it took nothing."""
    rows = answer.fetchall()
    if rows[0][-1]:
        return None
    return _attempts(worker, [row[:-1] for row in rows if row[0] is not None])


def _leased(connection: Connection, worker: str, name: str) -> list[Attempt]:
    """What an earlier try of that very lease took."""
    query = (
        f"SELECT {ROLLOUT}, lease_until, seq FROM rollouts"
        " WHERE status = 'running' AND worker = %b AND lease = %b"
    )
    return _attempts(worker, select(connection, query, worker, name))


def _heartbeat(connection: Connection, attempts: Sequence[Attempt], seconds: float) -> Cursor:
    """Extend the leases of the running ones among the attempts. `_kept` reads the answer."""
    statement = (
        "WITH holding AS MATERIALIZED (SELECT seq AS held FROM rollouts WHERE id = ANY(%b::text[])"
        # who is held has a worker; "status = 'running'" would tempt the planner to look at all that run
        " AND worker IS NOT NULL AND attempts || ' ' || id = ANY(%b::text[]) ORDER BY seq FOR UPDATE)"
        f" UPDATE rollouts SET lease_until = {queue.NOW} + %b FROM holding WHERE seq = held"
        f" RETURNING {queue.MINE}, lease_until"
    )
    ids = [one.rollout.id for one in attempts]
    keys = [f"{one.number} {one.rollout.id}" for one in attempts]
    return connection.execute(statement, (ids, keys, seconds), binary=True)


def _kept(attempts: Sequence[Attempt], answer: Cursor) -> list[Attempt]:
    """Those of the attempts that a heartbeat found running, with the leases it gave them."""
    held = {row[0]: row for row in answer.fetchall()}
    return [
        attempt(to_rollout(row), one.worker, row[-1])
        for one in attempts
        if (row := held.get(one.rollout.id)) is not None and row[10] == one.number
    ]


def _end(
    connection: Connection, before: Attempt, after: Rollout, reward: Reward | None, notice: Notice
) -> Cursor:
    """Write how an attempt ended that is still its rollout's running one, and tell of it. `_ended` reads the
    answer."""
    ended = f"{queue.SAVE} AND status = 'running' AND attempts = %b AND max_attempts = %b RETURNING {ROLLOUT}"
    values: Row = (*queue.changed(after), before.number, before.rollout.max_attempts)
    given = ""
    if reward is not None:
        marks = ", ".join(["%b"] * (REWARD.count(",") + 1))
        given = f", given AS (INSERT INTO rewards ({REWARD}) SELECT {marks} FROM ended)"
        values += reward_row(reward)
    statement = f"WITH ended AS ({ended}){given} SELECT {ROLLOUT}, pg_notify(%b, %b) FROM ended"
    return connection.execute(statement, (*values, *notice), binary=True)


def _ended(answer: Cursor) -> Rollout | None:
    """The rollout that was ended; None if the attempt was not its running one."""
    row = answer.fetchone()
    return None if row is None else to_rollout(row)


def _notice(rollout: Rollout, channels: Channels) -> Notice:
    """What to tell when an attempt has ended so."""
    (notice,) = channels.finished([rollout.id]) if rollout.status.finished else channels.queued()
    return notice


def _attempts(worker: str, rows: Sequence[Row]) -> list[Attempt]:
    """By falling priority, then in the order of arrival."""
    rows = sorted(rows, key=lambda row: (-row[7], row[-1]))
    return [attempt(to_rollout(row), worker, row[-2]) for row in rows]


def _after(
    attempt: Attempt, before: Rollout | None, reward: float | None, error: str | None, given: float | None
) -> tuple[Rollout, Reward | None]:
    """What becomes of the rollout, and the final reward to record beside it."""
    now = time.time()
    after = rules.finished(attempt, before, reward=reward, error=error, given=given, now=now)
    return after, None if reward is None else rules.final_reward(after, reward, now)
