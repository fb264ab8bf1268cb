"""Connections to a PostgreSQL store: URL, settings, how text is written, errors in words, and the tables.

No message ever holds the password, nor any part of a URL that may hold one.

The tables lie in a schema of their own, so other programs may use the same database. A schema is either ours,
in the version this program writes, or it is refused: another program's tables are left alone, and another
version is not guessed at.

PostgreSQL takes neither NUL characters nor halves of surrogate pairs in text. They are written as U+FDD0 (a
code point that Unicode keeps free for such uses inside a program) and four hexadecimal digits, and read back
as what they were. All other text is stored as it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import Connection
from psycopg.abc import Buffer
from psycopg.adapt import AdaptersMap
from psycopg.conninfo import conninfo_to_dict
from psycopg.sql import SQL, Identifier
from psycopg.types.numeric import Int8BinaryDumper
from psycopg.types.string import StrBinaryDumper, TextBinaryLoader

from lightning_core.errors import ConfigError, StoreError
from lightning_core.stores import legacy
from lightning_core.stores.credentials import advice, takes_none
from lightning_core.stores.rows import SCHEMA, Dialect

FORM = "postgresql://user:password@host:port/database?schema=lightning"
DEFAULT_SCHEMA = "lightning"
PASSWORD = "PGPASSWORD"
"""The environment variable with the password for a URL without one, which libpq reads."""
_DEFAULTS: dict[str, Any] = {
    "application_name": "agentlightning",
    "connect_timeout": 10,
    # a server that vanished without a word is noticed within half a minute
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,
}
_COMING = (
    *("starting up", "shutting down", "recovery", "not accepting connections", "too many", "slots are"),
    "terminating connection",
)
"""Words in a server's errors, in English, when it will take connections later."""

LOCKED = "55P03"
"""Another transaction has held a lock for too long."""
IDLE = "25P03"
"""The server has ended our transaction, as we were silent for too long."""
VERSION = 8
"""Version of the schema."""
OLDER = (5, 6, 7)
"""Versions that are read too: 5 has no places of rollouts, before 7 each call was whole, and before 8 no call
had a policy."""
DIALECT: Dialect = {
    "text": 'text COLLATE "C"',
    "bytes": "bytea",
    "int": "bigint",
    "bool": "boolean",
    "float": "float8",
    "serial": "seq bigserial",
    "order": "seq bigserial PRIMARY KEY",
    "among": "= ANY(?::text[])",
    "index": "AS",  # its planner chooses by itself
    "now": "extract(epoch FROM statement_timestamp())::float8",
    "lock": "FOR UPDATE",
    "skip": "FOR UPDATE SKIP LOCKED",
    "share": "FOR SHARE",
}
OWN = (
    "ALTER TABLE rollouts SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000)",
    "CREATE TABLE writers (name text PRIMARY KEY, number bigint NOT NULL)",
    "CREATE TABLE migrations (version bigint PRIMARY KEY, made_at timestamptz NOT NULL DEFAULT now())",
)
SETTINGS = (
    # What a method returned from survives a crash of the server, whatever the server's default.
    "SET synchronous_commit = on;"
    # Tables grow a thousandfold between two looks of the planner, so plans must not follow its guesses
    # of their size: always by index, which every statement has, planned once for each connection.
    "SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_hashjoin = off;"
    "SET enable_mergejoin = off; SET jit = off;"
    "SET plan_cache_mode = force_generic_plan;"
    # A client that vanished without a word holds its locks for half a minute, not for hours. An operation
    # that another one keeps waiting is soon tried again, so that those behind it go first.
    "SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 4;"
    "SET idle_in_transaction_session_timeout = '30s'; SET lock_timeout = '50ms';"
    "SET client_min_messages = error; SET default_transaction_isolation = 'read committed';"
)


MARK = "\ufdd0"
_REFUSED = re.compile(f"[\x00\ud800-\udfff{MARK}]")
_WRITTEN = re.compile(f"{MARK}([0-9a-f]{{4}})")


def escape(text: str) -> str:
    """The text as PostgreSQL takes it."""
    return _REFUSED.sub(lambda found: f"{MARK}{ord(found[0]):04x}", text)


def unescape(text: str) -> str:
    """The text that was escaped."""
    return _WRITTEN.sub(lambda found: chr(int(found[1], 16)), text) if MARK in text else text


class TextDumper(StrBinaryDumper):
    def dump(self, obj: str) -> Buffer:
        try:
            written = obj.encode()
        except UnicodeEncodeError:
            return escape(obj).encode()
        return escape(obj).encode() if b"\x00" in written or MARK in obj else written


class TextLoader(TextBinaryLoader):
    def load(self, data: Buffer) -> str:
        return unescape(str(data, "utf-8"))


def adapters() -> AdaptersMap:
    """psycopg's adapters with our text, and with integers as the columns keep them: 64 bits."""
    adapters = AdaptersMap(psycopg.adapters)
    adapters.register_dumper(str, TextDumper)
    adapters.register_dumper(int, Int8BinaryDumper)
    adapters.register_loader("text", TextLoader)
    return adapters


@dataclass(frozen=True, slots=True)
class Place:
    """Where a store lies: how to connect, and what to call it."""

    conninfo: dict[str, Any] = field(repr=False)
    """libpq's settings, the password among them."""
    schema: str
    """The PostgreSQL schema that holds the tables."""
    name: str
    """For messages: without the password."""
    advice: str = ""
    """Why the environment's password was not sent, and what to do."""


def place_of(url: str) -> Place:
    """The place that a URL names. Raises ConfigError if it can't be read."""
    given = _parsed(url)
    schema = given.pop("schema")
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", schema) or schema.startswith("pg_"):
        raise ConfigError(
            f"schema {schema!r} of a PostgreSQL store: use small letters, digits and '_', not 'pg_' in front"
        )
    user = f"{given['user']}@" if "user" in given else ""
    port = f":{given['port']}" if "port" in given else ""
    name = f"postgresql://{user}{given.get('host', '')}{port}/{given.get('dbname', '')}"
    if takes_none(url):  # an empty one is a password to libpq, which then takes none of the environment
        given.setdefault("password", "")
    return Place({**_DEFAULTS, **given}, schema, name, advice(PASSWORD, url))


def _parsed(url: str) -> dict[str, str]:
    """libpq's settings in the URL, and our own "schema"."""
    base, _, query = url.partition("?")
    options = [option for option in query.split("&") if option]
    ours = [option for option in options if option.startswith("schema=")]
    rest = "&".join(option for option in options if option not in ours)
    try:
        given = conninfo_to_dict(f"{base}?{rest}" if rest else base)
    except psycopg.Error as error:
        unknown = re.search(r'invalid URI query parameter: "(\w+)"', str(error))
        hint = f": it has no option {unknown[1]!r}" if unknown else ""
        raise ConfigError(f"the URL of a PostgreSQL store can't be read{hint}; write {FORM!r}") from None
    if not base.startswith(("postgresql://", "postgres://")):
        raise ConfigError(f"the URL of a PostgreSQL store can't be read; write {FORM!r}")
    misplaced = any("@" in str(given.get(key, "")) for key in ("host", "dbname"))
    if misplaced or not re.fullmatch(r"[\d,]*", str(given.get("port", ""))):
        raise ConfigError(
            "the URL of a PostgreSQL store can't be read: in user and password write '@' as %40, ':' as %3A "
            f"and '/' as %2F, as in {FORM!r}"
        )
    schema = ours[-1].removeprefix("schema=") if ours else DEFAULT_SCHEMA
    return {**{key: str(value) for key, value in given.items()}, "schema": schema}


def may_pass(error: psycopg.Error, *, first: bool = False) -> bool:
    """Whether a failure is one of the connection or of a moment: the same may go well a little later.

    `first`: this was the first connection, so the server may refuse it for good. Only the words tell, and
    those are in the server's language; a server that took us before and refuses us now is coming or going.
    """
    if error.sqlstate is not None:
        # a deadlock or a conflict with another transaction, no more memory or connections, a shutdown
        passing = ("08", "40", "53", "57P", LOCKED, IDLE)
        return error.sqlstate.startswith(passing) and error.sqlstate != "53100"
    if not isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return False
    said = str(error)
    return not first or "FATAL:" not in said or any(sign in said for sign in _COMING)


def in_words(error: psycopg.Error, place: Place) -> StoreError:
    """Turns a PostgreSQL error into one that says what happened, to which store, and what to do next."""
    said = " ".join(str(error).split())
    return StoreError(f"the store {place.name!r} {_meaning(error, said, place.advice)} ({said})")


def _meaning(error: psycopg.Error, said: str, advice: str) -> str:
    state = error.sqlstate
    if state is None and isinstance(error, psycopg.OperationalError):
        if "authentication failed" in said or "no password" in said:
            todo = advice or f"check user and password in its URL, or set {PASSWORD} or PGPASSFILE"
            return f"refuses the password: {todo}"
        if "does not exist" in said and "database" in said:
            return "names a database that is not there: make it with `createdb`, or name another"
        if "FATAL:" in said:
            return "refuses the connection: check its URL and the server's pg_hba.conf"
        return "can't be reached: check that the server runs, and host and port of its URL"
    return {
        "42501": "may not be written by this user: grant it CREATE on the database, or give it the schema",
        "53100": "has no room: free some disk space on the server; what was recorded before is kept",
        "25006": "is read-only: name the primary server, not a standby",
    }.get(state or "", "refused an operation")


def connect(place: Place) -> Connection:
    """A connection that finds the store's tables. Raises psycopg's errors."""
    connection = psycopg.connect(
        **place.conninfo, autocommit=True, prepare_threshold=0, context=adapters(), client_encoding="utf8"
    )
    try:
        path = SQL("SET search_path = {}").format(Identifier(place.schema))
        connection.execute(SQL(SETTINGS) + path, prepare=False)
    except BaseException:
        connection.close()
        raise
    return connection


def opened(place: Place) -> Connection:
    """A connection to a store that is ready for use. Raises psycopg's errors, or StoreError."""
    connection = connect(place)
    try:
        _prepare(connection, place)
    except psycopg.Error as error:
        connection.close()
        raise error if may_pass(error) else in_words(error, place) from error
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: Connection, place: Place) -> None:
    """Make the tables, if there are none. Any number of processes may do so at once."""
    found = _version(connection, place)
    if found in (None, *OLDER):
        lock = f"agentlightning {place.schema}"
        # of the session, as only a transaction that begins after it sees what the others have made
        connection.execute("SELECT set_config('lock_timeout', '0', false)")
        connection.execute("SELECT pg_advisory_lock(hashtextextended(%b, 0))", (lock,))
        try:
            with connection.transaction():
                found = _version(connection, place) or _create(connection, place)
                found = _upgrade(connection, found) if found in OLDER else found
        finally:
            if not connection.closed:
                connection.execute("SELECT pg_advisory_unlock(hashtextextended(%b, 0))", (lock,))
                connection.execute(SETTINGS, prepare=False)
    if found != VERSION:
        raise StoreError(
            f"the store {place.name!r} has schema version {found} in {place.schema!r}, this program reads "
            f"{VERSION}: use the program that wrote it, or add ?schema=… to its URL for another place"
        )


def _version(connection: Connection, place: Place) -> int | None:
    """The schema version of the store; None if it has no table of them."""
    table = f"{place.schema}.migrations"
    if connection.execute("SELECT to_regclass(%b) IS NULL", (table,)).fetchone() == (True,):
        return None
    row = connection.execute("SELECT max(version) FROM migrations").fetchone()
    return None if row is None else row[0]


def _create(connection: Connection, place: Place) -> int:
    query = "SELECT count(*) FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace WHERE n.nspname = %b"
    if connection.execute(query, (place.schema,)).fetchone() != (0,):
        raise StoreError(
            f"schema {place.schema!r} of {place.name!r} holds tables of another program: "
            "add ?schema=… to the URL of the store for another place"
        )
    present = "SELECT 1 FROM pg_namespace WHERE nspname = %b"
    if connection.execute(present, (place.schema,)).fetchone() is None:
        connection.execute(SQL("CREATE SCHEMA {}").format(Identifier(place.schema)), prepare=False)
    for statement in (*SCHEMA, *OWN):
        connection.execute(statement.format_map(DIALECT), prepare=False)
    connection.execute("INSERT INTO migrations (version) VALUES (%b)", (VERSION,))
    return VERSION


def _upgrade(connection: Connection, found: int) -> int:
    if found == 5:
        for statement in legacy.ADDED:
            connection.execute(statement.format_map(DIALECT), prepare=False)
        rows = legacy.filled(connection.execute(legacy.KEPT).fetchall())
        with connection.cursor() as cursor:
            cursor.executemany("UPDATE rollouts SET place = %b, retry = %b WHERE id = %b", rows)
    connection.execute(legacy.POLICY.format_map(DIALECT), prepare=False)
    connection.execute("INSERT INTO migrations (version) VALUES (%b)", (VERSION,))
    return VERSION
