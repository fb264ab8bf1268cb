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
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, LiteralString

from psycopg import Connection

from lightning_core.stores import postgres_news, rules
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


@contextmanager
def transaction(connection: Connection) -> Iterator[None]:
    """A transaction whose first and last statements share the round trips of those beside them."""
    with connection.pipeline(), connection.transaction():
        yield


def select(connection: Connection, query: Any, *values: Any) -> list[Row]:
    return connection.execute(query, values, binary=True).fetchall()


def write(
    connection: Connection,
    statement: Any,
    rows: Sequence[Row],
    channel: str = "",
    notices: Sequence[str] = (),
) -> int:
    """Run the statement for each row and tell of it, in one round trip and all or none; returns how many
    rows it changed."""
    if len(rows) == 1 and not notices:
        return connection.execute(statement, rows[0]).rowcount
    with connection.cursor() as cursor:
        with connection.pipeline():  # up to its end it is one transaction
            cursor.executemany(statement, rows)
            tell(connection, channel, notices)
        return cursor.rowcount


def insert(table: str, columns: str, *, otherwise: str = "") -> str:
    """INSERT statement for a row of these columns; `otherwise` is what to do when it is known."""
    marks = ", ".join(["%b"] * (columns.count(",") + 1))
    return f"INSERT INTO {table} ({columns}) VALUES ({marks}) {otherwise}"


def upsert(table: str, columns: str, key: str, *more: str) -> str:
    """INSERT statement that replaces the row of the same `key`; `more` columns get what a new row would."""
    others = [name for name in columns.split(", ") if name not in key.split(", ")]
    changes = ", ".join(f"{name} = EXCLUDED.{name}" for name in (*others, *more))
    return insert(table, columns, otherwise=f"ON CONFLICT ({key}) DO UPDATE SET {changes}")


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
) -> list[Attempt]:
    """Take up to `limit` queued rollouts under the lease `name`; with `in_time` only if no lease has run out,
    as what was held by it may come first."""
    unless = f" AND NOT EXISTS (SELECT 1 FROM rollouts WHERE {LATE})" if in_time else ""
    statement = (  # a plain subquery might be run more than once, and take more each time
        f"WITH queue AS MATERIALIZED (SELECT seq AS taken FROM rollouts WHERE {_queued_of(run_id)}{unless}"
        " ORDER BY priority DESC, seq LIMIT %b FOR UPDATE SKIP LOCKED)"
        " UPDATE rollouts SET status = 'running', attempts = attempts + 1, worker = %b, lease = %b,"
        f" lease_until = {NOW} + %b FROM queue WHERE seq = taken RETURNING {MINE}, lease_until, seq"
    )
    return _attempts(worker, select(connection, statement, *_given(run_id), limit, worker, name, seconds))


def leased(connection: Connection, worker: str, name: str) -> list[Attempt]:
    """What an earlier try of that very lease took."""
    query = (
        f"SELECT {ROLLOUT}, lease_until, seq FROM rollouts"
        " WHERE status = 'running' AND worker = %b AND lease = %b"
    )
    return _attempts(worker, select(connection, query, worker, name))


def expire(connection: Connection, channel: str) -> None:
    """End the leases that ran out; inside a transaction."""
    query = f"SELECT {ROLLOUT}, worker FROM rollouts WHERE {LATE} ORDER BY seq FOR UPDATE SKIP LOCKED"
    now = time.time()
    rollouts = [rules.expired(to_rollout(row), row[-1], now) for row in select(connection, query)]
    failed = [rollout.id for rollout in rollouts if rollout.status.finished]
    save(connection, rollouts, channel, postgres_news.finished(failed))


def heartbeat(connection: Connection, attempts: Sequence[Attempt], seconds: float) -> list[Attempt]:
    """Extend the leases of the running ones among the attempts."""
    statement = (
        "WITH holding AS MATERIALIZED (SELECT seq AS held FROM rollouts WHERE id = ANY(%b::text[])"
        # who is held has a worker; "status = 'running'" would tempt the planner to look at all that run
        " AND worker IS NOT NULL AND attempts || ' ' || id = ANY(%b::text[]) ORDER BY seq FOR UPDATE)"
        f" UPDATE rollouts SET lease_until = {NOW} + %b FROM holding WHERE seq = held"
        f" RETURNING {MINE}, lease_until"
    )
    ids = [one.rollout.id for one in attempts]
    keys = [f"{one.number} {one.rollout.id}" for one in attempts]
    held = {row[0]: row for row in select(connection, statement, ids, keys, seconds)}
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


def save(connection: Connection, rollouts: Sequence[Rollout], channel: str, notices: Sequence[str]) -> None:
    """Write what can change of the rollouts, held by nobody, and tell of it; inside a transaction."""
    if rollouts:
        connection.cursor().executemany(SAVE, [_changed(rollout) for rollout in rollouts])
    tell(connection, channel, notices)


def tell(connection: Connection, channel: str, notices: Sequence[str]) -> None:
    if notices:
        query = "SELECT pg_notify(%b, notice) FROM unnest(%b::text[]) AS told(notice)"
        connection.execute(query, (channel, list(notices)))


def end(
    connection: Connection, before: Attempt, after: Rollout, reward: Reward | None, channel: str
) -> Rollout | None:
    """Write how an attempt ended that is still its rollout's running one; None if it is not."""
    ended = f"{SAVE} AND status = 'running' AND attempts = %b AND max_attempts = %b RETURNING {ROLLOUT}"
    values: Row = (*_changed(after), before.number, before.rollout.max_attempts)
    given = ""
    if reward is not None:
        marks = ", ".join(["%b"] * (REWARD.count(",") + 1))
        given = f", given AS (INSERT INTO rewards ({REWARD}) SELECT {marks} FROM ended)"
        values += reward_row(reward)
    statement = f"WITH ended AS ({ended}){given} SELECT {ROLLOUT}, pg_notify(%b, %b) FROM ended"
    (notice,) = ended_notices(after)
    rows = select(connection, statement, *values, channel, notice)
    return to_rollout(rows[0]) if rows else None


def ended_notices(rollout: Rollout) -> list[str]:
    """What to tell when an attempt has ended so."""
    return postgres_news.finished([rollout.id]) if rollout.status.finished else [postgres_news.queued()]


def rewards_of(connection: Connection, attempt: Attempt) -> list[Reward]:
    """The rewards that were added in that attempt."""
    query = f"SELECT {REWARD} FROM rewards WHERE rollout_id = %b AND attempt = %b ORDER BY seq"
    return list(map(to_reward, select(connection, query, attempt.rollout.id, attempt.number)))


def running(connection: Connection, rewards: Sequence[Reward]) -> dict[str, Rollout]:
    """The rollouts of the rewards; inside a transaction, until whose end none of them finishes."""
    query = f"SELECT {ROLLOUT} FROM rollouts WHERE id = ANY(%b::text[]) ORDER BY seq FOR SHARE"
    ids = list({reward.rollout_id for reward in rewards})
    return {row[0]: to_rollout(row) for row in select(connection, query, ids)}


def known_rewards(connection: Connection, rewards: Sequence[Reward]) -> set[rules.RewardKey]:
    """The keys of those rewards that are stored already."""
    keys = [key for reward in rewards if (key := rules.reward_key(reward)) is not None]
    if not keys:
        return set()
    query = (
        "SELECT rollout_id, attempt, id FROM rewards JOIN unnest(%b::text[], %b::bigint[], %b::text[])"
        " AS key(k, n, i) ON rollout_id = k AND attempt = n AND id = i"
    )
    return {
        (row[0], row[1], row[2]) for row in select(connection, query, *map(list, zip(*keys, strict=True)))
    }


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
