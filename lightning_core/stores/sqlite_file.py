"""Opening the file of a SQLite store, and its errors in words.

A file is either ours, with the schema this version writes, or it is refused: another program's
tables are left alone, and a newer schema is not guessed at. It holds prompts and the keys that sign
tokens, so only its user may read it.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import stat
import time
from contextlib import suppress
from pathlib import Path

from lightning_core.errors import ConfigError, StoreError

log = logging.getLogger(__name__)

SCHEMA_VERSION = 5

EVENTS = (
    "CREATE TABLE events (rollout_id TEXT NOT NULL, attempt INTEGER NOT NULL, kind TEXT NOT NULL,"
    " id TEXT NOT NULL, started_at REAL NOT NULL, body BLOB NOT NULL,"
    " PRIMARY KEY (rollout_id, attempt, kind, id))"
)
RESOURCES = (
    "CREATE TABLE resources (run_id TEXT NOT NULL, name TEXT NOT NULL, version INTEGER NOT NULL,"
    " kind TEXT NOT NULL, uri TEXT, parent INTEGER, author TEXT NOT NULL, metrics BLOB NOT NULL,"
    " created_at REAL NOT NULL, chosen_at REAL, PRIMARY KEY (run_id, name, version))"
)
MEMBERS = (
    "CREATE TABLE members (run_id TEXT NOT NULL, role TEXT NOT NULL, name TEXT NOT NULL, url TEXT,"
    " data BLOB NOT NULL, started_at REAL NOT NULL, seen_at REAL NOT NULL, PRIMARY KEY (run_id, role, name))"
)
ALERTS = (
    "CREATE TABLE alerts (run_id TEXT NOT NULL, id TEXT NOT NULL, rule TEXT NOT NULL, level TEXT NOT NULL,"
    " message TEXT NOT NULL, step INTEGER, created_at REAL NOT NULL, PRIMARY KEY (run_id, id))"
)
REWARD_IDS = "CREATE UNIQUE INDEX rewards_by_id ON rewards (rollout_id, attempt, id) WHERE id IS NOT NULL"
LEASED = "CREATE INDEX rollouts_leased ON rollouts (lease_clock, lease_end) WHERE status = 'running'"
PAGES = (
    "CREATE INDEX rollouts_of_run ON rollouts (run_id, seq)",
    "CREATE INDEX rollouts_of_step ON rollouts (run_id, step, seq)",
    "CREATE INDEX rollouts_of_split ON rollouts (run_id, split, seq)",
    "CREATE INDEX rollouts_of_status ON rollouts (run_id, status, seq)",
)
"""A page of rollouts is read from one of these, so it costs the same however many there are."""

SCHEMA = (
    "CREATE TABLE schema_version (version INTEGER NOT NULL)",
    "CREATE TABLE runs (id TEXT PRIMARY KEY, config BLOB NOT NULL, folder TEXT, status TEXT NOT NULL,"
    " created_at REAL NOT NULL, provenance BLOB NOT NULL, secret TEXT NOT NULL)",
    # `seq` is the order of arrival; the partial indexes hold only what `lease` looks for, so it costs
    # the same however many rollouts have ended.
    "CREATE TABLE rollouts (seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE,"
    " run_id TEXT NOT NULL, task BLOB NOT NULL, group_id TEXT NOT NULL, step INTEGER NOT NULL,"
    " split TEXT NOT NULL, sampling BLOB NOT NULL, priority INTEGER NOT NULL,"
    " max_attempts INTEGER NOT NULL, status TEXT NOT NULL, attempts INTEGER NOT NULL, reward REAL,"
    " error TEXT, created_at REAL NOT NULL, finished_at REAL, policy_version INTEGER,"
    " worker TEXT, lease_until REAL, lease_clock TEXT, lease_end REAL)",
    *PAGES,
    "CREATE INDEX rollouts_queued ON rollouts (priority DESC, seq) WHERE status = 'queued'",
    "CREATE INDEX rollouts_queued_of_run ON rollouts (run_id, priority DESC, seq) WHERE status = 'queued'",
    LEASED,
    # A call outside any rollout has rollout_id '' and attempt 0: NULL never equals NULL in a key.
    "CREATE TABLE calls (rollout_id TEXT NOT NULL, attempt INTEGER NOT NULL, id TEXT NOT NULL,"
    " agent TEXT NOT NULL, trained INTEGER NOT NULL, dialect TEXT NOT NULL, model TEXT NOT NULL,"
    " temperature REAL NOT NULL, policy_version INTEGER, status TEXT NOT NULL, error TEXT,"
    " started_at REAL NOT NULL, ended_at REAL NOT NULL, request BLOB NOT NULL, prompt_ids BLOB,"
    " choices BLOB NOT NULL, completion_ids BLOB NOT NULL, logprobs BLOB NOT NULL, response_id TEXT,"
    " endpoint TEXT,"
    " PRIMARY KEY (rollout_id, attempt, id))",
    "CREATE TABLE rewards (rollout_id TEXT NOT NULL, attempt INTEGER NOT NULL, value REAL NOT NULL,"
    " kind TEXT NOT NULL, agent TEXT, call_id TEXT, source TEXT NOT NULL, reason TEXT,"
    " created_at REAL NOT NULL, id TEXT)",
    "CREATE INDEX rewards_of_attempt ON rewards (rollout_id, attempt)",
    REWARD_IDS,
    EVENTS,
    RESOURCES,
    MEMBERS,
    ALERTS,
    "CREATE TABLE metrics (run_id TEXT NOT NULL, step INTEGER NOT NULL, numbers BLOB NOT NULL,"
    " created_at REAL NOT NULL, PRIMARY KEY (run_id, step))",
)

MIGRATIONS = {
    1: (
        "ALTER TABLE calls ADD COLUMN response_id TEXT",
        "ALTER TABLE calls ADD COLUMN endpoint TEXT",
        EVENTS,
    ),
    2: ("ALTER TABLE rewards ADD COLUMN id TEXT", REWARD_IDS),
    3: (
        "ALTER TABLE runs ADD COLUMN provenance BLOB NOT NULL DEFAULT x'7b7d'",
        "ALTER TABLE runs ADD COLUMN secret TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE rollouts ADD COLUMN policy_version INTEGER",
        "ALTER TABLE resources RENAME TO older_resources",
        RESOURCES,
        "INSERT INTO resources SELECT run_id, name, version, kind, uri, parent, 'trainer', metrics,"
        " created_at, created_at FROM older_resources",
        "DROP TABLE older_resources",
        MEMBERS,
        ALERTS,
    ),
    4: (
        "ALTER TABLE rollouts ADD COLUMN lease_clock TEXT",
        "ALTER TABLE rollouts ADD COLUMN lease_end REAL",
        "UPDATE rollouts SET lease_clock = 'of an older store', lease_end = 0 WHERE status = 'running'",
        "DROP INDEX rollouts_leased",
        LEASED,
        "DROP INDEX rollouts_of_run",
        *PAGES,
    ),
}
"""What leads from each older schema version to the next."""


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


def connect(path: Path, busy_seconds: float) -> sqlite3.Connection:
    """An open connection to a file with the schema; made if it is not there yet."""
    folder = path.parent
    if not os.path.isdir(folder):  # unlike Path.is_dir, no exception if it may not be entered
        raise StoreError(f"can't reach folder {str(folder)!r} of store {path.name!r}: make it or allow it")
    with suppress(OSError):  # it is there, or SQLite says why it can't be
        os.mknod(path, stat.S_IFREG | 0o600)  # opens nothing: to close it would end SQLite's own locks on it
    try:
        connection = sqlite3.connect(path, busy_seconds, isolation_level=None, check_same_thread=False)
    except sqlite3.Error as error:
        raise in_words(error, path, busy_seconds) from error
    try:
        _prepare(connection, path, busy_seconds)
    except sqlite3.Error as error:
        connection.close()
        raise in_words(error, path, busy_seconds) from error
    except StoreError:
        connection.close()
        raise
    _narrow(path)
    return connection


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


def in_words(error: sqlite3.Error, path: Path, busy_seconds: float) -> StoreError:
    """What an SQLite error means for the user: what happened, to which file, what to do next."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    said = {
        sqlite3.SQLITE_BUSY: f"is locked: another process held it for {busy_seconds:g} s; end that process",
        sqlite3.SQLITE_READONLY: "can't be written: make file and folder writable, or use another path",
        sqlite3.SQLITE_FULL: "has no room: free some disk space; what was recorded before is kept",
        sqlite3.SQLITE_IOERR: "can't be read or written by the disk: check its space and health",
        sqlite3.SQLITE_CANTOPEN: "can't be opened: it must be a file that you may read and write",
        sqlite3.SQLITE_NOTADB: "is not a SQLite database: use another path",
        sqlite3.SQLITE_CORRUPT: "is damaged: restore it from a copy, or use another path",
    }.get(code, "refused an operation")
    return StoreError(f"the store {str(path)!r} {said} ({error})")


def _prepare(connection: sqlite3.Connection, path: Path, busy_seconds: float) -> None:
    _switch_to_wal(connection, path, busy_seconds)
    # In WAL mode NORMAL survives the death of any process at any moment; only a power loss or a
    # kernel crash may undo the last transactions (never damage the file). FULL costs an fsync each.
    connection.execute("PRAGMA synchronous = NORMAL")
    if _version(connection) in (None, *MIGRATIONS):
        connection.execute("BEGIN IMMEDIATE")
        if _version(connection) is None:  # another process may have been first
            _create(connection, path)
        _migrate(connection)
        connection.execute("COMMIT")
    version = _version(connection)
    if version != SCHEMA_VERSION:
        raise StoreError(
            f"the store {str(path)!r} has schema version {version}, this program reads {SCHEMA_VERSION}: "
            "use the program that wrote it, or another path"
        )


def _switch_to_wal(connection: sqlite3.Connection, path: Path, busy_seconds: float) -> None:
    """Readers beside a writer need WAL. The switch doesn't wait for locks by itself, so it is repeated."""
    deadline = time.monotonic() + busy_seconds
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


def _version(connection: sqlite3.Connection) -> int | None:
    """The schema version of the file; None if it has no such table."""
    tables = "SELECT 1 FROM sqlite_schema WHERE name = 'schema_version'"
    if connection.execute(tables).fetchone() is None:
        return None
    row = connection.execute("SELECT version FROM schema_version").fetchone()
    return None if row is None else int(row[0])


def _create(connection: sqlite3.Connection, path: Path) -> None:
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if tables:
        raise StoreError(f"{str(path)!r} is the database of another program: use another path for the store")
    for statement in SCHEMA:
        connection.execute(statement)
    connection.execute("INSERT INTO schema_version VALUES (?)", (SCHEMA_VERSION,))


def _migrate(connection: sqlite3.Connection) -> None:
    while (version := _version(connection)) is not None and version in MIGRATIONS:
        for statement in MIGRATIONS[version]:
            connection.execute(statement)
        connection.execute("UPDATE schema_version SET version = ?", (version + 1,))
