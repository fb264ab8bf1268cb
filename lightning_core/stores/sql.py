"""A transaction on SQL tables (a `queue.Transaction`): which rows are read, each by an index, and locked.

Rows are locked in the order of `seq`, so operations seldom wait in a circle. All rows of an answer are
fetched before one is read: one that can't be would keep the statement open.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter, itemgetter
from typing import Any, Final, TypeVar

from lightning_core.records.linking import under_own_id
from lightning_core.records.types import (
    LARGEST_REWARD,
    Call,
    Metrics,
    Record,
    Reward,
    Rollout,
    RolloutCount,
    Status,
)
from lightning_core.stores import queue, rules
from lightning_core.stores.deltas import Body, Recent, base_of, wholes
from lightning_core.stores.notifications import QUEUE, Topic
from lightning_core.stores.queue import Held, Page
from lightning_core.stores.rows import CALLS, COUNT, METRICS, REWARDS, ROLLOUTS, Row, Table, to_count

T = TypeVar("T", bound=Record)
SAVE = (
    "UPDATE rollouts SET status = ?, attempts = ?, max_attempts = ?, reward = ?, error = ?, finished_at = ?,"
    " worker = ?, lease_until = {now} + ? WHERE id = ?"
)
SAVED = attrgetter("attempts", "max_attempts", "reward", "error", "finished_at")
LEASED = "rollouts {index} rollouts_leased WHERE status = 'running'"
LATE = f"{LEASED} AND lease_until <= {{now}}"
PUT_CALL = (
    f"INSERT INTO calls ({CALLS.columns}) {{values}} ON CONFLICT ({CALLS.key}) DO UPDATE SET {CALLS.replaced}"
    " WHERE calls.status <> 'completed'"
)
OF_ATTEMPT = "rollout_id = ? AND attempt = ?"
_MARKS = ", ".join("?" * (CALLS.columns.count(",") + 1))
PUT_ANY = PUT_CALL.format(values=f"VALUES ({_MARKS})")
PUT_RUNNING = PUT_CALL.format(
    values=f"SELECT {_MARKS} FROM rollouts WHERE id = ? AND attempts = ? AND status = 'running' {{share}}"
)
ADD_REWARD = f"{REWARDS.insert} ON CONFLICT (rollout_id, attempt, id) WHERE id IS NOT NULL DO NOTHING"
ALL: Final = 2**62
"""More rows than a table can hold, for a LIMIT that is none."""
FIRST: Final = -(2**63)
"""No integer that is stored is less."""


class SqlTransaction(ABC):
    """A connection to SQL tables. `{marks}` in the statements stand for words of the database."""

    def __init__(self) -> None:
        self._recent = Recent()
        self.begin()

    def begin(self) -> None:
        """Forget the last transaction."""
        self.topics: list[Topic] = []
        self.held: dict[str, Held | None] = {}
        self.queue: Iterator[Rollout] | None = None

    @abstractmethod
    def rows(self, query: str, *values: Any) -> list[Row]:
        """The rows that a query finds."""

    @abstractmethod
    def run(self, statement: str, rows: Iterable[Row]) -> Callable[[], int]:
        """Run a statement with the values of each row. The number of rows that it has changed is best asked
        for when others have run theirs."""

    def tell(self, topics: Iterable[Topic]) -> None:
        self.topics += topics

    # rollouts -----------------------------------------------------------------------------
    def fetch(self, rollout_ids: Sequence[str]) -> dict[str, Held]:
        return self._held("rollouts WHERE id {among} ORDER BY seq {lock}", list(rollout_ids))

    def find(self, rollout_ids: Iterable[str]) -> dict[str, Rollout]:
        found = self._held("rollouts WHERE id {among}", list(rollout_ids))
        return {name: rollout for name, (rollout, _) in found.items()}

    def statuses(self, rollout_ids: Iterable[str]) -> dict[str, Status]:
        found = self.rows("SELECT id, status FROM rollouts WHERE id {among}", list(rollout_ids))
        return {row[0]: Status(row[1]) for row in found}

    def page(self, page: Page) -> list[Rollout]:
        low = self._place(page, page.after) if page.after is not None else (-2 * LARGEST_REWARD, 0)
        high = self._place(page, page.before) if page.before is not None else (2 * LARGEST_REWARD, ALL)
        part = slice(page.order == "enqueued", None)
        first = page.first_key()
        key = [*(page.wanted[one] for one in first), page.run_id]
        others = [value for one, value in page.wanted.items() if one not in first]
        most = ALL if page.limit is None else page.limit
        rows = self.rows(paging(page), *key, *low[part], *key, *high[part], *others, most)
        found = [ROLLOUTS.value(row) for row in rows]
        return found[::-1] if page.newest else found

    def count(self, run_id: str) -> list[RolloutCount]:
        return list(map(to_count, self.rows(COUNT, run_id)))

    def work(self, run_id: str | None) -> tuple[bool, float | None]:
        source, given = queued(run_id)
        query = f"SELECT EXISTS (SELECT 1 FROM {source}), (SELECT min(lease_until) FROM {LEASED}) - {{now}}"
        ((found, seconds),) = self.rows(query, *given)
        return bool(found) or (seconds is not None and seconds <= 0), seconds

    def due(self, limit: int, run_id: str | None) -> list[Rollout]:
        rows = self._next(limit, run_id)
        if not rows or rows[0][-1]:
            late = self._held(f"{LATE} ORDER BY seq {{skip}}").values()
            queue.save(self, [rules.expired(rollout, worker, time.time()) for rollout, worker in late])
            rows = self._next(limit, run_id)
        return [ROLLOUTS.value(row) for row in rows]

    def leased_by(self, worker: str) -> list[str]:
        where = "rollouts {index} rollouts_held WHERE status = 'running' AND worker = ?"
        return [row[0] for row in self.rows(f"SELECT id FROM {where}", worker)]

    def enqueue(self, rollouts: Sequence[Rollout]) -> Callable[[], int]:
        self.tell([QUEUE])
        return self.add(ROLLOUTS, rollouts)

    def put(self, rollouts: Sequence[Rollout], worker: str | None, seconds: float | None) -> None:
        self.run(SAVE, [(one.status.value, *SAVED(one), worker, seconds, one.id) for one in rollouts])

    def _held(self, where: str, *values: object) -> dict[str, Held]:
        rows = self.rows(f"SELECT {ROLLOUTS.columns}, worker FROM {where}", *values)
        return {row[0]: (ROLLOUTS.value(row), row[-1]) for row in rows}

    def _place(self, page: Page, rollout_id: str) -> Row:
        """(reward, seq)"""
        query = "SELECT reward, seq FROM rollouts WHERE id = ? AND run_id = ?"
        found = self.rows(query, rollout_id, page.run_id)
        if not found or (page.order == "reward" and found[0][0] is None):
            raise rules.unknown_place(rollout_id, page.run_id, known=bool(found))
        return found[0]

    def _next(self, limit: int, run_id: str | None) -> list[Row]:
        """The next queued rollouts; the last column says whether a lease has run out, whose rollout may come
        before them."""
        source, given = queued(run_id)
        query = (
            f"SELECT {ROLLOUTS.columns}, EXISTS (SELECT 1 FROM {LATE}) FROM {source}"
            " ORDER BY priority DESC, seq LIMIT ? {skip}"
        )
        return self.rows(query, *given, limit)

    # what happened in them ----------------------------------------------------------------
    def put_call(self, call: Call, *, running: bool) -> Callable[[], None]:
        """One statement, unless one completed under its id or its attempt has ended; one more for a call that
        goes on from another."""
        whole = CALLS.row(call)
        row = self._shortened(whole)
        counted = self.run(PUT_RUNNING, [(*row, *row[:2])]) if running else self.run(PUT_ANY, [row])

        def look() -> None:
            if counted():
                return None
            known = self._known(row)
            if known is None or not CALLS.has_completed(known):
                return rules.check_running(call, self.find([row[0]]).get(row[0]))
            if call.status != "completed" or known == whole:
                return None
            return self.put_call(under_own_id(call), running=running)()

        return look

    def _shortened(self, whole: Row) -> Row:
        """The row of a call as it is to be stored."""

        def read(names: Sequence[str]) -> dict[str, Body]:
            where = f"{OF_ATTEMPT} AND status = 'completed' AND id {{among}}"
            query = f"SELECT id, request, prompt_ids, completion_ids FROM calls WHERE {where}"
            return {name: Body(*parts) for name, *parts in self.rows(query, *whole[:2], list(names))}

        return CALLS.shortened(whole, self._recent, read)

    def _known(self, row: Row) -> Row | None:
        """The row under the key of another, whole."""
        select = f"SELECT {CALLS.columns} FROM calls WHERE {OF_ATTEMPT}"
        found = next(iter(self.rows(f"{select} AND id = ?", *row[:3])), None)
        if found is None or base_of(CALLS.body(found)) is None:
            return found
        bodies = {one[2]: CALLS.body(one) for one in self.rows(select, *row[:2])}
        return CALLS.with_body(found, wholes(bodies, [row[2]]).get(row[2], CALLS.body(found)))

    def add_rewards(self, rewards: Sequence[Reward]) -> None:
        self.run(ADD_REWARD, map(REWARDS.row, rewards))

    def is_stored(self, reward: Reward) -> bool:
        query = "SELECT 1 FROM rewards WHERE rollout_id = ? AND attempt = ? AND id = ?"
        return bool(self.rows(query, reward.rollout_id, reward.attempt, reward.id))

    def rewards(self, rollout_id: str, attempt: int) -> list[Reward]:
        query = f"SELECT {REWARDS.columns} FROM rewards WHERE rollout_id = ? AND attempt = ? ORDER BY seq"
        return list(map(REWARDS.value, self.rows(query, rollout_id, attempt)))

    def of_last_attempts(self, table: Table[T], rollout_ids: Sequence[str]) -> dict[str, list[T]]:
        columns = ", ".join(f"item.{column}" for column in (*table.columns.split(", "), "seq"))
        query = (
            f"SELECT {columns} FROM {table.name} AS item"
            " JOIN rollouts ON rollouts.id = item.rollout_id AND rollouts.attempts = item.attempt"
            " WHERE rollouts.id {among}"
        )
        found: dict[str, list[Row]] = {rollout_id: [] for rollout_id in rollout_ids}
        for row in sorted(self.rows(query, list(found)), key=itemgetter(-1)):
            found[row[0]].append(row)
        return {rollout_id: table.values(rows) for rollout_id, rows in found.items()}

    # records ------------------------------------------------------------------------------
    def select(self, table: Table[T], **wanted: str) -> list[T]:
        where = " WHERE " + " AND ".join(f"{column} = ?" for column in wanted) if wanted else ""
        query = f"SELECT {table.columns} FROM {table.name}{where} ORDER BY seq"
        return [table.value(row) for row in self.rows(query, *wanted.values())]

    def metrics(self, run_id: str, since: int | None, limit: int | None) -> list[Metrics]:
        where = "metrics WHERE run_id = ? AND step >= ? ORDER BY run_id, step LIMIT ?"
        query = f"SELECT {METRICS.columns} FROM {where}"
        first, most = FIRST if since is None else since, ALL if limit is None else limit
        return [METRICS.value(row) for row in self.rows(query, run_id, first, most)]

    def upsert(self, table: Table[T], records: Iterable[T]) -> None:
        self.run(table.upsert, map(table.row, records))

    def add(self, table: Table[T], records: Sequence[T]) -> Callable[[], int]:
        return self.run(table.add, map(table.row, records))

    def remove(self, table: Table[Any], *key: str) -> None:
        where = " AND ".join(f"{column} = ?" for column in table.key.split(", "))
        self.run(f"DELETE FROM {table.name} WHERE {where}", [key])


def paging(page: Page) -> str:
    """The query of `page`. It compares whole keys of an index and asks for its very order, so no planner has
    a cheaper way, whatever it believes of the table: by equality it might follow `seq` alone, past the
    rollouts of all runs. Its values: the key and the place after which it begins, the key and the place
    before which it ends, what else is wanted, the limit."""
    first = page.first_key()
    key = [*first, "run_id", *(["seq"] if page.order == "enqueued" else ["reward", "seq"])]
    names, marks = ", ".join(key), ", ".join("?" * len(key))
    where = f"({names}) > ({marks}) AND ({names}) < ({marks})"
    where += " AND reward IS NOT NULL" if page.order == "reward" else ""
    where += "".join(f" AND {column} = ?" for column in page.wanted if column not in first)
    order = ", ".join(f"{column} {'DESC' if page.newest else 'ASC'}" for column in key)
    return f"SELECT {ROLLOUTS.columns} FROM rollouts WHERE {where} ORDER BY {order} LIMIT ?"


def queued(run_id: str | None) -> tuple[str, tuple[str, ...]]:
    """From where rollouts of a run, or of all, may be leased, by which index; with its values."""
    if run_id is None:
        return "rollouts {index} rollouts_queued WHERE status = 'queued'", ()
    return "rollouts {index} rollouts_queued_of_run WHERE status = 'queued' AND run_id = ?", (run_id,)
