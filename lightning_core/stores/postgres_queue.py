"""Finding and changing rollouts and their rewards in the PostgreSQL schema, on somebody's connection.

The rules say what becomes of a rollout; here is which rows are looked at, each by an index, and locked
while a rule decides over them. What an attempt needs is in `postgres_attempts`.

Rows are locked in the order of `seq` everywhere, so operations can wait for, but not block, each other.
Leases run by the server's clock: those of many machines need not agree.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, LiteralString

from psycopg import Connection

from lightning_core.stores import rules
from lightning_core.stores.postgres_news import Channels
from lightning_core.stores.postgres_statements import Notice, add, select, tell
from lightning_core.stores.rows import REWARD, ROLLOUT, Row, of, to_reward, to_rollout
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


def page(
    connection: Connection,
    run_id: str,
    wanted: Mapping[str, int | str],
    after: str | None,
    limit: int | None,
    newest: bool,
) -> list[Rollout]:
    """Rollouts of a run, by the index of the first thing they are wanted by."""
    place = 0 if after is None else _place(connection, run_id, after)
    query = paging(tuple(wanted), newest=newest)
    values = list(wanted.values())
    key, others = [*values[:1], run_id], values[1:]
    found = [to_rollout(row) for row in select(connection, query, *key, place, *key, *others, limit)]
    return found[::-1] if newest else found


def paging(wanted: Sequence[str], *, newest: bool) -> str:
    """The query of `page`. It compares whole keys of an index and asks for its very order, so the planner has
    no cheaper way, whatever it believes of the table: by equality it might follow `seq` alone, past the
    rollouts of all runs. Its values: the key, the place, the key, what else is wanted, the limit."""
    key = [*wanted[:1], "run_id"]
    marks = ", ".join(["%b"] * len(key))
    where = f"({', '.join(key)}, seq) > ({marks}, %b) AND ({', '.join(key)}) <= ({marks})"
    where += "".join(f" AND {column} = %b" for column in wanted[1:])
    order = ", ".join(f"{column} {'DESC' if newest else 'ASC'}" for column in (*key, "seq"))
    return f"SELECT {ROLLOUT} FROM rollouts WHERE {where} ORDER BY {order} LIMIT %b"


def _place(connection: Connection, run_id: str, rollout_id: str) -> int:
    query = "SELECT seq FROM rollouts WHERE id = %b AND run_id = %b"
    found = select(connection, query, rollout_id, run_id)
    if not found:
        raise rules.unknown_after(rollout_id, run_id)
    return int(found[0][0])


def work(connection: Connection, run_id: str | None) -> tuple[bool, float | None]:
    """Whether a lease would find anything, and the seconds until the next lease runs out."""
    query = (
        f"SELECT EXISTS (SELECT 1 FROM rollouts WHERE {queued_of(run_id)}),"
        f" (SELECT min(lease_until) FROM rollouts WHERE status = 'running') - {NOW}"
    )
    ((found, seconds),) = select(connection, query, *given(run_id))
    return found or (seconds is not None and seconds <= 0), seconds


def expire(connection: Connection, channels: Channels) -> None:
    """End the leases that ran out; inside a transaction."""
    query = f"SELECT {ROLLOUT}, worker FROM rollouts WHERE {LATE} ORDER BY seq FOR UPDATE SKIP LOCKED"
    now = time.time()
    rollouts = [rules.expired(to_rollout(row), row[-1], now) for row in select(connection, query)]
    failed = [rollout.id for rollout in rollouts if rollout.status.finished]
    save(connection, rollouts, channels.finished(failed))


def lock(connection: Connection, where: LiteralString, value: Any) -> list[tuple[Rollout, str | None]]:
    """The rollouts that are found so, each with the worker that holds it; inside a transaction, until whose
    end nobody else changes them."""
    query = f"SELECT {ROLLOUT}, worker FROM rollouts WHERE {where} ORDER BY seq FOR UPDATE"
    return [(to_rollout(row), row[-1]) for row in select(connection, query, value)]


def save(connection: Connection, rollouts: Sequence[Rollout], notices: Sequence[Notice]) -> None:
    """Write what can change of the rollouts, with no lease, and tell of it; inside a transaction."""
    if rollouts:
        add(connection, SAVE, [changed(rollout) for rollout in rollouts])
    tell(connection, notices)


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


def changed(rollout: Rollout) -> Row:
    """The values of SAVE."""
    return (
        rollout.status.value,
        rollout.attempts,
        rollout.max_attempts,
        rollout.reward,
        rollout.error,
        rollout.finished_at,
        rollout.id,
    )


def queued_of(run_id: str | None) -> str:
    """Which rollouts of a run, or of all, may be leased; its values are `given`."""
    return "status = 'queued'" if run_id is None else "status = 'queued' AND run_id = %b"


def given(run_id: str | None) -> tuple[str, ...]:
    """The values of `queued_of`."""
    return () if run_id is None else (run_id,)
