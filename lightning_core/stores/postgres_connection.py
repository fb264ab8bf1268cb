"""Connections to a PostgreSQL store: their settings, how text is written, and the tables.

The tables lie in a schema of their own, so other programs may use the same database. A schema is either ours,
in the version this program writes, or it is refused: another program's tables are left alone, and another
version is not guessed at.

PostgreSQL takes neither NUL characters nor halves of surrogate pairs in text. They are written as U+FDD0 (a
code point that Unicode keeps free for such uses inside a program) and four hexadecimal digits, and read back
as what they were. All other text is stored as it is.
"""

from __future__ import annotations

import re

import psycopg
from psycopg import Connection
from psycopg.abc import Buffer
from psycopg.adapt import AdaptersMap
from psycopg.sql import SQL, Identifier
from psycopg.types.numeric import Int8BinaryDumper
from psycopg.types.string import StrBinaryDumper, TextBinaryLoader

from lightning_core.errors import StoreError
from lightning_core.stores.postgres_url import Place, in_words, may_pass
from lightning_core.stores.rows import SCHEMA, Dialect

VERSION = 3
"""Of the schema."""
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
    if found is None:
        lock = f"agentlightning {place.schema}"
        # of the session, as only a transaction that begins after it sees what the others have made
        connection.execute("SELECT set_config('lock_timeout', '0', false)")
        connection.execute("SELECT pg_advisory_lock(hashtextextended(%b, 0))", (lock,))
        try:
            with connection.transaction():
                found = _version(connection, place) or _create(connection, place)
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
