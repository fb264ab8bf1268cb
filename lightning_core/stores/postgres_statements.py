"""How statements reach PostgreSQL: alone, several in one transaction, or beside those of other callers.

What comes in one pipeline costs one round trip, and one transaction is one wait for the disk: that is
most of what a small operation costs. So the operations that wait for a connection are sent together.
The rows they change are locked first, and nothing is waited for: so two such groups can't block each
other, and nobody waits for a row that another one needs. If any of it fails nothing was done, and each is
carried out by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from psycopg import Connection, Cursor
from psycopg.pq import TransactionStatus

from lightning_core.stores.rows import Row

T = TypeVar("T")
Operation = Callable[[Connection], T]
Notice = tuple[str, str]
"""A channel, and what to tell on it."""

LOCK = "SELECT 1 FROM rollouts WHERE id = ANY(%b::text[]) FOR UPDATE NOWAIT"
NOTIFY = "SELECT pg_notify(channel, notice) FROM unnest(%b::text[], %b::text[]) AS told(channel, notice)"


@dataclass(frozen=True, slots=True)
class Shared(Generic[T]):
    """An operation that one statement does in nearly every case, so that others may go with it."""

    send: Callable[[Connection], Cursor]
    """Send the statement. Within a pipeline its answer is not there yet."""
    read: Callable[[Cursor], T | None]
    """What the answer means. None: the statement did nothing, and more than it is needed."""
    alone: Operation[T]
    """The whole operation, whatever it needs."""
    locks: Sequence[str] = ()
    """Ids of the rollouts whose rows it changes; not those that it finds itself and skips if locked."""
    notices: Sequence[Notice] = ()
    """To tell when it is done."""

    def __call__(self, connection: Connection) -> T:
        return self.alone(connection)


def writing(statement: str, rows: Callable[[], Sequence[Row]], notices: Sequence[Notice] = ()) -> Shared[int]:
    """Run a statement for each row, made in the thread that does it, as there may be thousands; how many
    rows it changed."""
    return Shared(
        send=lambda connection: add(connection, statement, rows()),
        read=lambda cursor: cursor.rowcount,
        alone=lambda connection: write(connection, statement, rows(), notices),
        notices=notices,
    )


def together(connection: Connection, operations: Sequence[Shared[Any]]) -> list[Cursor]:
    """Send all in one transaction; returns the answers, once it is committed."""
    locks = [rollout_id for one in operations for rollout_id in one.locks]
    notices = dict.fromkeys(notice for one in operations for notice in one.notices)
    try:
        with connection.pipeline(), connection.transaction():
            if locks:
                connection.execute(LOCK, (locks,))
            cursors = [one.send(connection) for one in operations]
            tell(connection, list(notices))
    except BaseException:
        if connection.pgconn.transaction_status == TransactionStatus.INERROR:
            connection.rollback()
        raise
    return cursors


@contextmanager
def transaction(connection: Connection) -> Iterator[None]:
    """Statements of which all are carried out or none, without a round trip to begin and to commit.

    PostgreSQL makes one transaction of what comes in one pipeline. What raises in it must do so before
    it writes: nothing takes back what was written.
    """
    with connection.pipeline():
        yield


def select(connection: Connection, query: Any, *values: Any) -> list[Row]:
    return connection.execute(query, values, binary=True).fetchall()


def add(connection: Connection, statement: Any, rows: Sequence[Row]) -> Cursor:
    """Run the statement for each row; inside a transaction, unless it is one."""
    if len(rows) == 1:
        return connection.execute(statement, rows[0])
    cursor = connection.cursor()
    cursor.executemany(statement, rows)
    return cursor


def write(connection: Connection, statement: Any, rows: Sequence[Row], notices: Sequence[Notice]) -> int:
    """Run the statement for each row and tell of it, in one round trip and all or none; returns how many
    rows it changed."""
    if len(rows) == 1 and not notices:
        return add(connection, statement, rows).rowcount
    if len(rows) == 1:  # cheaper than a pipeline of two
        ((changed, _),) = select(connection, telling(statement), *rows[0], *_columns(notices))
        return int(changed)
    with transaction(connection):
        cursor = add(connection, statement, rows)
        tell(connection, notices)
    return cursor.rowcount


def tell(connection: Connection, notices: Sequence[Notice]) -> None:
    if notices:
        connection.execute(NOTIFY, _columns(notices))


def telling(statement: str) -> str:
    """The statement, and telling (channels, notices) of it; gives how many rows it changed."""
    return (
        f"WITH changed AS ({statement} RETURNING 1), told AS ({NOTIFY})"
        " SELECT (SELECT count(*) FROM changed), (SELECT count(*) FROM told)"
    )


def insert(table: str, columns: str, *, otherwise: str = "") -> str:
    """INSERT statement for a row of these columns; `otherwise` is what to do when it is known."""
    marks = ", ".join(["%b"] * (columns.count(",") + 1))
    return f"INSERT INTO {table} ({columns}) VALUES ({marks}) {otherwise}"


def upsert(table: str, columns: str, key: str, *more: str) -> str:
    """INSERT statement that replaces the row of the same `key`; `more` columns get what a new row would."""
    others = [name for name in columns.split(", ") if name not in key.split(", ")]
    changes = ", ".join(f"{name} = EXCLUDED.{name}" for name in (*others, *more))
    return insert(table, columns, otherwise=f"ON CONFLICT ({key}) DO UPDATE SET {changes}")


def _columns(notices: Sequence[Notice]) -> tuple[list[str], list[str]]:
    return [channel for channel, _ in notices], [words for _, words in notices]
