"""The store in one SQLite file, the default, or in memory. Several processes of one machine may share a file.

What a method has returned from survives `kill -9` of every process (not a power loss, see `_prepare`). A file
is either ours, with the schema this version writes, or it is refused: another program's tables are left
alone, and another schema is not guessed at. It holds prompts and the keys that sign tokens, so only its user
may read it.
"""

from __future__ import annotations

import logging
import math
import os
import sqlite3
import stat
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from lightning_core.errors import ConfigError, StoreError
from lightning_core.records.types import Attempt
from lightning_core.stores import legacy
from lightning_core.stores.notifications import FINISHED, Notifications, Topic
from lightning_core.stores.packing import dump_json
from lightning_core.stores.rows import SCHEMA, Dialect, Row
from lightning_core.stores.sql import SqlTransaction
from lightning_core.stores.table_store import TableStore
from lightning_core.stores.workers import Direct, Driver, Job, Operation, StoreWorker

log = logging.getLogger(__name__)

SCHEMA_VERSION = 11
OLDER = (8, 9, 10)
"""Versions that are read too: 8 has no places of rollouts, before 10 each call was whole, and before 11 no
call had a policy."""
OWN = "CREATE INDEX rollouts_counted ON rollouts (run_id, step, split, status, reward)"
"""Counting a run's rollouts reads this alone, in a third of the time. PostgreSQL would read pages from it,
too, and sort."""
BUSY_SECONDS = 30.0
"""How long to wait for another process that is writing."""
POLL_SECONDS = 0.25
"""How often those who wait look for what other processes did; what this one does wakes them at once."""
DIALECT: Dialect = {
    "text": "TEXT",
    "bytes": "BLOB",
    "int": "INTEGER",
    "bool": "INTEGER",
    "float": "REAL",
    "serial": "seq INTEGER PRIMARY KEY",
    "order": "seq INTEGER PRIMARY KEY AUTOINCREMENT",
    "among": "IN (SELECT value FROM json_each(?))",
    "index": "INDEXED BY",
    "now": "lease_clock()",
    # a transaction that writes has the whole file for itself
    "lock": "",
    "skip": "",
    "share": "",
}
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
MOST_ENDS = 2**31
"""SQLite keeps `user_version` in 32 bits."""


class SqliteStore(TableStore):
    """`sqlite:///runs.db` (relative) or `sqlite:////data/runs.db` (absolute)."""

    def __init__(self, url: str) -> None:
        self.path = path_of(url).absolute()  # an app may change the working directory
        self.name = str(self.path)
        notifications = Notifications()
        self._driver, reading = (
            SqliteDriver(self.name, lambda: connect(self.path), notifications, writes=writes)
            for writes in (True, False)
        )
        super().__init__(
            StoreWorker(self._driver), StoreWorker(reading), notifications, look_seconds=POLL_SECONDS
        )

    async def lease(
        self, worker: str, limit: int, seconds: float, *, run_id: str | None = None
    ) -> list[Attempt]:
        # idle workers ask often, and the reader needs no lock
        if limit > 0 and not (await self._read(lambda of: of.work(run_id)))[0]:
            limit = 0
        return await super().lease(worker, limit, seconds, run_id=run_id)

    async def __aexit__(self, *exc: object) -> None:
        await super().__aexit__(*exc)
        if self._driver.gone and exc[0] is None:
            raise StoreError(self._driver.gone)

    async def _ends(self) -> int:
        ended: int = await self._reader.run(Operation(ends))
        return ended


class MemoryStore(TableStore):
    """`memory://`: a store of its own for each object, and gone with it.

    It may be used from any thread and event loop, before it is opened and after it was closed. An operation
    runs where it is called, as it waits for no disk.
    """

    def __init__(self, url: str = "memory://") -> None:
        if url != "memory://":
            raise ConfigError(
                f"store {url!r} is not a memory store: write 'memory://', without anything after it"
            )
        self.name = url
        notifications = Notifications()
        worker = Direct(SqliteDriver(url, connect_memory, notifications))
        super().__init__(worker, worker, notifications, look_seconds=math.inf)
        weakref.finalize(self, worker.connection.raw.close)


class SqliteConnection(SqlTransaction):
    """A connection to the tables, in memory or in the file of a store."""

    def __init__(self, raw: sqlite3.Connection, path: Path | None = None) -> None:
        super().__init__()
        self.raw, self.path = raw, path
        self._files = _files(path)

    @property
    def is_gone(self) -> bool:
        """Whether another file, or none, lies at the path of the one that is open: writes would be lost."""
        return _files(self.path) != self._files

    def rows(self, query: str, *values: Any) -> list[Row]:
        given = [dump_json(value).decode() if isinstance(value, list) else value for value in values]
        return self.raw.execute(_words(query), given).fetchall()

    def run(self, statement: str, rows: Iterable[Row]) -> Callable[[], int]:
        before = self.raw.total_changes
        self.raw.executemany(_words(statement), rows).close()
        changed = self.raw.total_changes - before
        return lambda: changed


@cache
def _words(statement: str) -> str:
    return statement.format_map(DIALECT)


class SqliteDriver(Driver[SqliteConnection]):
    """Begins and commits on the connections that it is told to make."""

    def __init__(
        self,
        name: str,
        connect: Callable[[], SqliteConnection],
        notifications: Notifications,
        *,
        writes: bool = True,
    ) -> None:
        super().__init__(notifications)
        self.name, self._connect = name, connect
        self._writes = writes
        self.gone = ""
        """Describes the loss of the file, if it was removed or replaced while it was open."""

    def connect(self) -> SqliteConnection:
        return self._connect()

    def close(self, connection: SqliteConnection) -> None:
        with suppress(StoreError):
            self._check_there(connection)
        connection.raw.close()

    def _check_there(self, connection: SqliteConnection) -> None:
        """Raise StoreError if the file was removed or replaced; what was recorded is written beside it."""
        if connection.is_gone:
            self.gone = self.gone or _rescued(connection)
            raise StoreError(self.gone)

    @contextmanager
    def transaction(self, connection: SqliteConnection, jobs: Sequence[Job]) -> Iterator[list[Topic]]:
        self._check_there(connection)
        connection.begin()
        topics = connection.topics
        if not self._writes:
            yield topics
            return
        connection.raw.execute("BEGIN IMMEDIATE")
        try:
            yield topics
            if any(kind == FINISHED for kind, _ in topics):
                connection.raw.execute(f"PRAGMA user_version = {(ends(connection) + 1) % MOST_ENDS}")
            connection.raw.execute("COMMIT")
        except BaseException:
            if connection.raw.in_transaction:
                connection.raw.execute("ROLLBACK")
            raise

    def concerns_all(self, error: Exception) -> bool:
        return _is_busy(error) or super().concerns_all(error)

    def explain(self, error: Exception) -> Exception:
        if isinstance(error, sqlite3.Error):
            words = in_words(error, self.name)
        elif isinstance(error, UnicodeEncodeError):
            words = StoreError(f"a store can't keep {error.object!r}: it is not whole Unicode text")
        else:
            return error
        words.__cause__ = error
        return words


def ends(connection: SqliteConnection) -> int:
    """A number that differs whenever rollouts have finished meanwhile, in whatever process.

    It stands in the file's header, so who waits for thousands of rollouts reads that and no row.
    """
    return int(connection.rows("PRAGMA user_version")[0][0])


def path_of(url: str) -> Path:
    """The file a store URL names: `sqlite:///runs.db` is relative, `sqlite:////data/runs.db` absolute."""
    prefix = "sqlite:///"
    name = url.removeprefix(prefix)
    if not url.startswith(prefix) or not name or name.endswith("/"):
        raise ConfigError(
            f"store {url!r} names no SQLite file: write 'sqlite:///runs.db' or 'sqlite:////data/runs.db'"
        )
    if name == ":memory:":
        raise ConfigError(f"store {url!r} can't be shared between connections: write 'memory://'")
    if "?" in name:
        raise ConfigError(f"store {url!r} has options after '?', and a SQLite store takes none")
    return Path(name).absolute()


def connect(path: Path) -> SqliteConnection:
    """An open connection to a file with the schema; made if it is not there yet. Raises StoreError."""
    folder = path.parent
    if not os.path.isdir(folder):  # unlike Path.is_dir, no exception if it may not be entered
        raise StoreError(f"can't reach folder {str(folder)!r} of store {path.name!r}: make it or allow it")
    with suppress(OSError):  # it is there, or SQLite says why it can't be
        os.mknod(path, stat.S_IFREG | 0o600)  # opens nothing: to close it would end SQLite's own locks on it
    try:
        connection = sqlite3.connect(path, BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    except sqlite3.Error as error:
        raise in_words(error, str(path)) from error
    try:
        _prepare(connection, path)
    except sqlite3.Error as error:
        connection.close()
        raise in_words(error, str(path)) from error
    except StoreError:
        connection.close()
        raise
    _narrow(path)
    return SqliteConnection(connection, path)


def connect_memory() -> SqliteConnection:
    """A connection to a database of its own, in memory, with the schema."""
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    connection.create_function("lease_clock", 0, boot_seconds)
    for statement in (*SCHEMA, OWN):
        connection.execute(_words(statement))
    return SqliteConnection(connection)


def _files(path: Path | None) -> list[tuple[int, int] | None]:
    """(device, inode) of the database at the path of a store and of its log; None where there is no file."""
    found: list[tuple[int, int] | None] = []
    for file in () if path is None else (path, f"{path}-wal"):
        try:
            status = os.stat(file)
        except OSError:
            found.append(None)
        else:
            found.append((status.st_dev, status.st_ino))
    return found


def _rescued(connection: SqliteConnection) -> str:
    """Write what a removed file held to a new one beside it; returns what to tell the user."""
    path = connection.path
    assert path is not None
    name = path.with_name(f"{path.stem}.rescued-{os.getpid()}{path.suffix}")
    said = f"the store {str(path)!r} was removed or replaced while it was open, so nothing more is recorded"
    try:
        if not name.exists():  # the other connection of this process may have been first
            os.mknod(name, stat.S_IFREG | 0o600)
            connection.raw.execute("VACUUM INTO ?", (str(name),))
    except (OSError, sqlite3.Error) as error:
        return f"{said}, and its records are lost ({error}): start a new run in another folder"
    whole = "All that was recorded until then" if not path.exists() else "What could still be read of it"
    return (
        f"{said}. {whole} is in {str(name)!r}: to go on, delete what is left of {path.name!r}, its -wal and "
        f"its -shm, rename that file to {path.name!r}, and resume"
    )


def _narrow(path: Path) -> None:
    """Take the rights of others, and those of a group that may read and not write, from file and log.

    A group that may write was given the file on purpose: SQLite's readers must write too.
    """
    for file in (path, *(path.with_name(path.name + end) for end in ("-wal", "-shm"))):
        with suppress(FileNotFoundError):
            mode = stat.S_IMODE(file.stat().st_mode)
            wanted = mode & (0o770 if mode & stat.S_IWGRP else 0o700)
            if mode != wanted:
                try:
                    file.chmod(wanted)
                except PermissionError:
                    log.warning(
                        "the store %r can be read by other users of this machine, and is another user's: ask "
                        "its owner to run `chmod o-rwx %s`",
                        str(file),
                        file,
                    )


def in_words(error: sqlite3.Error, name: str) -> StoreError:
    """Turns an SQLite error into one that says what happened, to which file, and what to do next."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    said = {
        sqlite3.SQLITE_BUSY: f"is locked: another process held it for {BUSY_SECONDS:g} s; end that process",
        sqlite3.SQLITE_READONLY: "can't be written: make file and folder writable, or use another path",
        sqlite3.SQLITE_FULL: "has no room: free some disk space; what was recorded before is kept",
        sqlite3.SQLITE_IOERR: "can't be read or written by the disk: check its space and health",
        sqlite3.SQLITE_CANTOPEN: "can't be opened: it must be a file that you may read and write",
        sqlite3.SQLITE_NOTADB: "is not a SQLite database: use another path",
        sqlite3.SQLITE_CORRUPT: "is damaged: restore it from a copy, or use another path",
    }.get(code, "refused an operation")
    return StoreError(f"the store {name!r} {said} ({error})")


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    connection.create_function("lease_clock", 0, boot_seconds)
    _switch_to_wal(connection, path)
    # In WAL mode NORMAL survives the death of any process at any moment; only a power loss or a
    # kernel crash may undo the last transactions (never damage the file). FULL costs an fsync each.
    connection.execute("PRAGMA synchronous = NORMAL")
    if _found(connection) != (SCHEMA_VERSION, clock_name()):
        connection.execute("BEGIN IMMEDIATE")
        found = _found(connection)  # another process may have been first
        if found is None:
            _create(connection, path)
        elif found[0] in OLDER:
            _upgrade(connection, found[0])
        if found is not None and found[0] in (*OLDER, SCHEMA_VERSION) and found[1] != clock_name():
            # its leases were made before the machine was started
            connection.execute("UPDATE rollouts SET lease_until = 0 WHERE status = 'running'")
            connection.execute("UPDATE schema_version SET clock = ?", (clock_name(),))
        connection.execute("COMMIT")
    version = (_found(connection) or (None,))[0]
    _check_tables(connection, path)
    if version != SCHEMA_VERSION:
        raise StoreError(
            f"the store {str(path)!r} has schema version {version}, this program reads {SCHEMA_VERSION}: "
            "use the program that wrote it, or another path"
        )


def _check_tables(connection: sqlite3.Connection, path: Path) -> None:
    """Raise StoreError for a file with a view in place of a table, or a trigger: they may never end."""
    strange = "SELECT type, name FROM sqlite_schema WHERE type NOT IN ('table', 'index')"
    if (found := connection.execute(strange).fetchone()) is not None:
        raise StoreError(
            f"the store {str(path)!r} holds a {found[0]} {found[1]!r}, which no store of this program "
            "has: it is a stranger's file, so use another path"
        )


def _switch_to_wal(connection: sqlite3.Connection, path: Path) -> None:
    """Readers beside a writer need WAL. The switch doesn't wait for locks by itself, so it is repeated."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            break
    if mode != "wal":
        raise StoreError(
            f"the store {str(path)!r} can't use a write-ahead log (mode {mode!r}): "
            "make it writable and keep it on a local disk, not on a network share"
        )


def _found(connection: sqlite3.Connection) -> tuple[int, str | None] | None:
    """The schema version of the file, and the clock its leases run by; None if it has no such table."""
    tables = "SELECT 1 FROM sqlite_schema WHERE name = 'schema_version'"
    if connection.execute(tables).fetchone() is None:
        return None
    row = connection.execute("SELECT * FROM schema_version").fetchone()
    return None if row is None else (row[0], row[1] if len(row) > 1 else None)


def _create(connection: sqlite3.Connection, path: Path) -> None:
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if tables:
        raise StoreError(f"{str(path)!r} is the database of another program: use another path for the store")
    for statement in (*SCHEMA, OWN):
        connection.execute(_words(statement))
    connection.execute("CREATE TABLE schema_version (version INTEGER NOT NULL, clock TEXT NOT NULL)")
    connection.execute("INSERT INTO schema_version VALUES (?, ?)", (SCHEMA_VERSION, clock_name()))


def _upgrade(connection: sqlite3.Connection, found: int) -> None:
    if found == 8:
        for statement in legacy.ADDED:
            connection.execute(_words(statement))
        rows = legacy.filled(connection.execute(legacy.KEPT).fetchall())
        connection.executemany("UPDATE rollouts SET place = ?, retry = ? WHERE id = ?", rows)
    connection.execute(_words(legacy.POLICY))
    connection.execute("UPDATE schema_version SET version = ?", (SCHEMA_VERSION,))


def _is_busy(error: Exception) -> bool:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return isinstance(error, sqlite3.Error) and code == sqlite3.SQLITE_BUSY


# the clock of leases ----------------------------------------------------------------------
@cache
def clock_name() -> str:
    """Which clock `boot_seconds` reads: one that can't be set, and goes on while the machine sleeps.

    It begins with the machine, and all its processes share it. So its readings mean nothing after the next
    start of the machine: each file says by which clock its leases were made. "" for the time of day, where
    the system names no start of the machine.
    """
    try:
        return _BOOT_ID.read_text().strip() if hasattr(time, "CLOCK_BOOTTIME") else ""
    except OSError:
        return ""


def boot_seconds() -> float:
    """Returns the time of that clock in seconds."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if clock_name() else time.time()
