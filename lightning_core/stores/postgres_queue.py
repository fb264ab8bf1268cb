"""Finding and changing rollouts and their rewards in the PostgreSQL schema, on somebody's connection.

The rules say what becomes of a rollout; here is which rows are looked at, each by an index. Where a
rule is a plain step (a lease starts an attempt, a heartbeat needs the running one) it is a statement;
where it decides, it decides in Python: over what the caller holds, written only where the stored row
is still just that (one round trip), or else over rows that are locked while it does.

Rows are locked in the order of `seq` everywhere, so operations can wait for, but not block, each other.
Leases run by the server's clock: those of many machines need not agree.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, LiteralString

from psycopg import Connection, Cursor

from lightning_core.stores import rules
from lightning_core.stores.postgres_news import Channels
from lightning_core.stores.postgres_statements import Notice, add, select, tell
from lightning_core.stores.rows import REWARD, ROLLOUT, Row, attempt, of, reward_row, to_reward, to_rollout
from lightning_core.types import Attempt, Reward, Rollout, Status

NOW = "extract(epoch FROM statement_timestamp())::float8"
HOLDER = "worker = NULL, lease = NULL, lease_until = NULL"
SAVE = (
    "UPDATE rollouts SET status = %b, attempts = %b, max_attempts = %b, reward = %b, error = %b,"
    f" finished_at = %b, {HOLDER} WHERE id = %b"
)
MINE = of("rollouts", ROLLOUT)
LATE = f"status = 'running' AND lease_until <= {NOW}"


def find(connection: Connection, rollout_ids: Iterable[str]) -> dict[str, Rollout]:
    """The rollouts that are stored under these ids, by id."""
    query = f"SELECT {ROLLOUT} FROM rollouts WHERE id = ANY(%b::text[])"
    return {row[0]: to_rollout(row) for row in select(connection, query, list(rollout_ids))}


def statuses(connection: Connection, rollout_ids: Iterable[str]) -> dict[str, Status]:
    """How the rollouts stand, without reading them whole."""
    query = "SELECT id, status FROM rollouts WHERE id = ANY(%b::text[])"
    return {row[0]: Status(row[1]) for row in select(connection, query, list(rollout_ids))}


def work(connection: Connection, run_id: str | None) -> tuple[bool, float | None]:
    """Whether a lease would find anything, and the seconds until the next lease runs out."""
    query = (
        f"SELECT EXISTS (SELECT 1 FROM rollouts WHERE {_queued_of(run_id)}),"
        f" (SELECT min(lease_until) FROM rollouts WHERE status = 'running') - {NOW}"
    )
    ((found, seconds),) = select(connection, query, *_given(run_id))
    return found or (seconds is not None and seconds <= 0), seconds


def lease(
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
    as what was held by it may come first. `taken` reads the answer."""
    late = f"EXISTS (SELECT 1 FROM rollouts WHERE {LATE})" if in_time else "false"
    statement = (  # a plain subquery might be run more than once, and take more each time
        f"WITH looked AS MATERIALIZED (SELECT {late} AS late),"
        f" queue AS MATERIALIZED (SELECT seq AS taken FROM rollouts WHERE {_queued_of(run_id)}"
        " AND NOT (SELECT late FROM looked) ORDER BY priority DESC, seq LIMIT %b FOR UPDATE SKIP LOCKED),"
        " held AS (UPDATE rollouts SET status = 'running', attempts = attempts + 1, worker = %b, lease = %b,"
        f" lease_until = {NOW} + %b FROM queue WHERE seq = taken RETURNING {MINE}, lease_until, seq)"
        " SELECT held.*, late FROM looked LEFT JOIN held ON true"
    )
    values = (*_given(run_id), limit, worker, name, seconds)
    return connection.execute(statement, values, binary=True)


def taken(worker: str, answer: Cursor) -> list[Attempt] | None:
    """What a lease took; None if another lease has run out, so that it took nothing."""
    rows = answer.fetchall()
    if rows[0][-1]:
        return None
    return _attempts(worker, [row[:-1] for row in rows if row[0] is not None])


def leased(connection: Connection, worker: str, name: str) -> list[Attempt]:
    """What an earlier try of that very lease took."""
    query = (
        f"SELECT {ROLLOUT}, lease_until, seq FROM rollouts"
        " WHERE status = 'running' AND worker = %b AND lease = %b"
    )
    return _attempts(worker, select(connection, query, worker, name))


def expire(connection: Connection, channels: Channels) -> None:
    """End the leases that ran out; inside a transaction."""
    query = f"SELECT {ROLLOUT}, worker FROM rollouts WHERE {LATE} ORDER BY seq FOR UPDATE SKIP LOCKED"
    now = time.time()
    rollouts = [rules.expired(to_rollout(row), row[-1], now) for row in select(connection, query)]
    failed = [rollout.id for rollout in rollouts if rollout.status.finished]
    save(connection, rollouts, channels.finished(failed))


def heartbeat(connection: Connection, attempts: Sequence[Attempt], seconds: float) -> Cursor:
    """Extend the leases of the running ones among the attempts. `kept` reads the answer."""
    statement = (
        "WITH holding AS MATERIALIZED (SELECT seq AS held FROM rollouts WHERE id = ANY(%b::text[])"
        # who is held has a worker; "status = 'running'" would tempt the planner to look at all that run
        " AND worker IS NOT NULL AND attempts || ' ' || id = ANY(%b::text[]) ORDER BY seq FOR UPDATE)"
        f" UPDATE rollouts SET lease_until = {NOW} + %b FROM holding WHERE seq = held"
        f" RETURNING {MINE}, lease_until"
    )
    ids = [one.rollout.id for one in attempts]
    keys = [f"{one.number} {one.rollout.id}" for one in attempts]
    return connection.execute(statement, (ids, keys, seconds), binary=True)


def kept(attempts: Sequence[Attempt], answer: Cursor) -> list[Attempt]:
    """Those of the attempts that a heartbeat found running, with the leases it gave them."""
    held = {row[0]: row for row in answer.fetchall()}
    return [
        attempt(to_rollout(row), one.worker, row[-1])
        for one in attempts
        if (row := held.get(one.rollout.id)) is not None and row[10] == one.number
    ]


def lock(connection: Connection, where: LiteralString, value: Any) -> list[tuple[Rollout, str | None]]:
    """The rollouts that are found so, each with the worker that holds it; inside a transaction, until whose
    end nobody else changes them."""
    query = f"SELECT {ROLLOUT}, worker FROM rollouts WHERE {where} ORDER BY seq FOR UPDATE"
    return [(to_rollout(row), row[-1]) for row in select(connection, query, value)]


def save(connection: Connection, rollouts: Sequence[Rollout], notices: Sequence[Notice]) -> None:
    """Write what can change of the rollouts, held by nobody, and tell of it; inside a transaction."""
    if rollouts:
        add(connection, SAVE, [_changed(rollout) for rollout in rollouts])
    tell(connection, notices)


def end(
    connection: Connection, before: Attempt, after: Rollout, reward: Reward | None, notice: Notice
) -> Cursor:
    """Write how an attempt ended that is still its rollout's running one, and tell of it. `ended` reads the
    answer."""
    ended = f"{SAVE} AND status = 'running' AND attempts = %b AND max_attempts = %b RETURNING {ROLLOUT}"
    values: Row = (*_changed(after), before.number, before.rollout.max_attempts)
    given = ""
    if reward is not None:
        marks = ", ".join(["%b"] * (REWARD.count(",") + 1))
        given = f", given AS (INSERT INTO rewards ({REWARD}) SELECT {marks} FROM ended)"
        values += reward_row(reward)
    statement = f"WITH ended AS ({ended}){given} SELECT {ROLLOUT}, pg_notify(%b, %b) FROM ended"
    return connection.execute(statement, (*values, *notice), binary=True)


def ended(answer: Cursor) -> Rollout | None:
    """The rollout that was ended; None if the attempt was not its running one."""
    row = answer.fetchone()
    return None if row is None else to_rollout(row)


def ended_notice(rollout: Rollout, channels: Channels) -> Notice:
    """What to tell when an attempt has ended so."""
    (notice,) = channels.finished([rollout.id]) if rollout.status.finished else channels.queued()
    return notice


def last(connection: Connection, attempt: Attempt) -> tuple[Rollout | None, float | None]:
    """The rollout of an attempt, and the last final reward that was added in that; inside a transaction,
    until whose end nobody else changes or adds one."""
    found = connection.execute(
        f"SELECT {ROLLOUT} FROM rollouts WHERE id = %b FOR UPDATE", (attempt.rollout.id,), binary=True
    )
    rewards = connection.execute(  # run when the lock is held, it sees all that was added before
        f"SELECT {REWARD} FROM rewards WHERE rollout_id = %b AND attempt = %b ORDER BY seq",
        (attempt.rollout.id, attempt.number),
        binary=True,
    )
    row = found.fetchone()
    given = rules.last_final(map(to_reward, rewards.fetchall()), attempt.number)
    return None if row is None else to_rollout(row), given


def state(
    connection: Connection, rewards: Sequence[Reward]
) -> tuple[dict[str, Rollout], set[rules.RewardKey]]:
    """The rollouts of the rewards, and the keys of those that are stored already; inside a transaction,
    until whose end none of the rollouts finishes."""
    ids = list({reward.rollout_id for reward in rewards})
    keys = [key for reward in rewards if (key := rules.reward_key(reward)) is not None]
    rollouts = connection.execute(
        f"SELECT {ROLLOUT} FROM rollouts WHERE id = ANY(%b::text[]) ORDER BY seq FOR SHARE",
        (ids,),
        binary=True,
    )
    known = connection.execute(
        "SELECT rollout_id, attempt, id FROM rewards JOIN unnest(%b::text[], %b::bigint[], %b::text[])"
        " AS key(k, n, i) ON rollout_id = k AND attempt = n AND id = i",
        [[key[place] for key in keys] for place in range(3)],
        binary=True,
    )
    found = {row[0]: to_rollout(row) for row in rollouts.fetchall()}
    return found, {(row[0], row[1], row[2]) for row in known.fetchall()}


def was_sent(connection: Connection, rewards: Sequence[Reward], name: str) -> bool:
    """Whether an earlier try of that very sending has stored them."""
    query = "SELECT 1 FROM rewards WHERE rollout_id = ANY(%b::text[]) AND sent = %b LIMIT 1"
    return bool(select(connection, query, [reward.rollout_id for reward in rewards], name))


def _changed(rollout: Rollout) -> Row:
    return (
        rollout.status.value,
        rollout.attempts,
        rollout.max_attempts,
        rollout.reward,
        rollout.error,
        rollout.finished_at,
        rollout.id,
    )


def _attempts(worker: str, rows: Sequence[Row]) -> list[Attempt]:
    """By falling priority, then in the order of arrival."""
    rows = sorted(rows, key=lambda row: (-row[7], row[-1]))
    return [attempt(to_rollout(row), worker, row[-2]) for row in rows]


def _queued_of(run_id: str | None) -> str:
    return "status = 'queued'" if run_id is None else "status = 'queued' AND run_id = %b"


def _given(run_id: str | None) -> tuple[str, ...]:
    return () if run_id is None else (run_id,)
