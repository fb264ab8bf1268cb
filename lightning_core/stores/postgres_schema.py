"""The tables of a PostgreSQL store, and how they come to be.

They lie in a schema of their own, so other programs may use the same database. A schema is either
ours, in the version this program writes, or it is refused: another program's tables are left alone,
and a newer version is not guessed at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import LiteralString

import psycopg
from psycopg import Connection
from psycopg.sql import SQL, Identifier

from lightning_core.errors import StoreError
from lightning_core.stores.postgres_text import adapters
from lightning_core.stores.postgres_url import Place, in_words, may_pass

MIGRATIONS: Mapping[int, Sequence[LiteralString]] = {
    1: (
        'CREATE TABLE runs (seq bigserial, id text COLLATE "C" PRIMARY KEY,'
        " config bytea NOT NULL, folder text, status text NOT NULL, created_at float8 NOT NULL,"
        " provenance bytea NOT NULL, secret text NOT NULL)",
        # `seq` is the order of arrival; the partial indexes hold only what `lease` looks for, so it
        # costs the same however many rollouts have ended. `lease` names the call that took it.
        "CREATE TABLE rollouts (seq bigserial PRIMARY KEY,"
        ' id text COLLATE "C" NOT NULL UNIQUE, run_id text COLLATE "C" NOT NULL, task bytea NOT NULL,'
        " group_id text NOT NULL, step bigint NOT NULL, split text NOT NULL, sampling bytea NOT NULL,"
        " priority bigint NOT NULL, max_attempts bigint NOT NULL, status text NOT NULL,"
        " attempts bigint NOT NULL, reward float8, error text, created_at float8 NOT NULL,"
        " finished_at float8, policy_version bigint, worker text, lease text, lease_until float8)"
        " WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000)",
        "CREATE INDEX rollouts_of_run ON rollouts (run_id, step, seq)",
        "CREATE INDEX rollouts_queued ON rollouts (priority DESC, seq) WHERE status = 'queued'",
        "CREATE INDEX rollouts_queued_of_run ON rollouts (run_id, priority DESC, seq)"
        " WHERE status = 'queued'",
        "CREATE INDEX rollouts_leased ON rollouts (lease_until) WHERE status = 'running'",
        "CREATE INDEX rollouts_held ON rollouts (worker) WHERE status = 'running'",
        # A call outside any rollout has rollout_id '' and attempt 0: NULL never equals NULL in a key.
        'CREATE TABLE calls (seq bigserial, rollout_id text COLLATE "C" NOT NULL,'
        ' attempt bigint NOT NULL, id text COLLATE "C" NOT NULL, agent text NOT NULL,'
        " trained boolean NOT NULL, dialect text NOT NULL, model text NOT NULL, temperature float8 NOT NULL,"
        " policy_version bigint, status text NOT NULL, error text, started_at float8 NOT NULL,"
        " ended_at float8 NOT NULL, request bytea NOT NULL, prompt_ids bytea, choices bytea NOT NULL,"
        " completion_ids bytea NOT NULL, logprobs bytea NOT NULL, response_id text, endpoint text,"
        " PRIMARY KEY (rollout_id, attempt, id))",
        'CREATE TABLE rewards (seq bigserial, rollout_id text COLLATE "C" NOT NULL,'
        " attempt bigint NOT NULL, value float8 NOT NULL, kind text NOT NULL, agent text, call_id text,"
        ' source text NOT NULL, reason text, created_at float8 NOT NULL, id text COLLATE "C", sent text)',
        "CREATE INDEX rewards_of_attempt ON rewards (rollout_id, attempt, seq)",
        "CREATE UNIQUE INDEX rewards_by_id ON rewards (rollout_id, attempt, id) WHERE id IS NOT NULL",
        'CREATE TABLE events (seq bigserial, rollout_id text COLLATE "C" NOT NULL,'
        ' attempt bigint NOT NULL, kind text NOT NULL, id text COLLATE "C" NOT NULL,'
        " started_at float8 NOT NULL, body bytea NOT NULL, PRIMARY KEY (rollout_id, attempt, kind, id))",
        'CREATE TABLE resources (run_id text COLLATE "C" NOT NULL, name text COLLATE "C" NOT NULL,'
        " version bigint NOT NULL, kind text NOT NULL, uri text, parent bigint, author text NOT NULL,"
        " metrics bytea NOT NULL, created_at float8 NOT NULL, chosen_at float8,"
        " PRIMARY KEY (run_id, name, version))",
        'CREATE TABLE metrics (run_id text COLLATE "C" NOT NULL, step bigint NOT NULL,'
        " numbers bytea NOT NULL, created_at float8 NOT NULL, PRIMARY KEY (run_id, step))",
        'CREATE TABLE members (run_id text COLLATE "C" NOT NULL, role text COLLATE "C" NOT NULL,'
        ' name text COLLATE "C" NOT NULL, url text, data bytea NOT NULL, started_at float8 NOT NULL,'
        " seen_at float8 NOT NULL, PRIMARY KEY (run_id, role, name))",
        'CREATE TABLE alerts (seq bigserial, run_id text COLLATE "C" NOT NULL,'
        ' id text COLLATE "C" NOT NULL, rule text NOT NULL, level text NOT NULL, message text NOT NULL,'
        " step bigint, created_at float8 NOT NULL, PRIMARY KEY (run_id, id))",
    ),
    # A page of rollouts is read from one of these, so it costs the same however many there are. No two begin
    # alike: else the planner might read one and sort, while it knows little of the table.
    2: (
        "DROP INDEX rollouts_of_run",
        "CREATE INDEX rollouts_of_run ON rollouts (run_id, seq)",
        "CREATE INDEX rollouts_of_step ON rollouts (step, run_id, seq)",
        "CREATE INDEX rollouts_of_split ON rollouts (split, run_id, seq)",
        "CREATE INDEX rollouts_of_status ON rollouts (status, run_id, seq)",
    ),
}
"""What leads to each schema version from the one before."""

SETTINGS = (
    # What a method returned from survives a crash of the server, whatever the server's default.
    "SET synchronous_commit = on;"
    # Tables grow a thousandfold between two looks of the planner, so plans must not follow its guesses
    # of their size: always by index, which every statement has, planned once for each connection.
    "SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_hashjoin = off;"
    "SET enable_mergejoin = off; SET jit = off;"
    "SET plan_cache_mode = force_generic_plan;"
    # A client that vanished without a word holds its locks for half a minute, not for hours; nobody waits
    # longer than the lock time-out for one that only sleeps.
    "SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 4;"
    "SET idle_in_transaction_session_timeout = '30s'; SET lock_timeout = '20s';"
    "SET client_min_messages = error; SET default_transaction_isolation = 'read committed';"
)


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


def prepare(connection: Connection, place: Place, migrations: Mapping[int, Sequence[LiteralString]]) -> None:
    """Make the tables, or bring older ones up to date. Any number of processes may do so at once."""
    newest = max(migrations)
    version = _version(connection, place)
    if version is None or version < newest:
        lock = f"agentlightning {place.schema}"
        # of the session, as only a transaction that begins after it sees what the others have made
        connection.execute("SELECT set_config('lock_timeout', '0', false)")  # a migration may take long
        connection.execute("SELECT pg_advisory_lock(hashtextextended(%b, 0))", (lock,))
        try:
            with connection.transaction():
                version = _migrate(connection, place, migrations)
        finally:
            if not connection.closed:
                connection.execute("SELECT pg_advisory_unlock(hashtextextended(%b, 0))", (lock,))
                connection.execute(SETTINGS, prepare=False)
    if version != newest:
        raise StoreError(
            f"the store {place.name!r} has schema version {version} in {place.schema!r}, this program reads "
            f"{newest}: use the program that wrote it, or add ?schema=… to its URL for another place"
        )


def opened(place: Place, migrations: Mapping[int, Sequence[LiteralString]] = MIGRATIONS) -> Connection:
    """A connection to a store that is ready for use. Raises psycopg's errors, or StoreError."""
    connection = connect(place)
    try:
        prepare(connection, place, migrations)
    except psycopg.Error as error:
        connection.close()
        raise error if may_pass(error) else in_words(error, place) from error
    except BaseException:
        connection.close()
        raise
    return connection


def _migrate(connection: Connection, place: Place, migrations: Mapping[int, Sequence[LiteralString]]) -> int:
    """Make what is not made yet; returns the version it is then."""
    version = _version(connection, place)  # another process may have been first
    if version is None:
        _create(connection, place)
    for number in range((version or 0) + 1, max(migrations) + 1):
        for statement in migrations[number]:
            connection.execute(statement, prepare=False)
        connection.execute("INSERT INTO migrations (version) VALUES (%b)", (number,))
        version = number
    return version or 0


def _version(connection: Connection, place: Place) -> int | None:
    """The schema version of the store; None if it has no table of them."""
    table = f"{place.schema}.migrations"
    if connection.execute("SELECT to_regclass(%b) IS NULL", (table,)).fetchone() == (True,):
        return None
    row = connection.execute("SELECT max(version) FROM migrations").fetchone()
    return None if row is None else row[0]


def _create(connection: Connection, place: Place) -> None:
    query = "SELECT count(*) FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace WHERE n.nspname = %b"
    if connection.execute(query, (place.schema,)).fetchone() != (0,):
        raise StoreError(
            f"schema {place.schema!r} of {place.name!r} holds tables of another program: "
            "add ?schema=… to the URL of the store for another place"
        )
    present = "SELECT 1 FROM pg_namespace WHERE nspname = %b"
    if connection.execute(present, (place.schema,)).fetchone() is None:
        connection.execute(SQL("CREATE SCHEMA {}").format(Identifier(place.schema)), prepare=False)
    connection.execute(
        "CREATE TABLE migrations (version bigint PRIMARY KEY, made_at timestamptz NOT NULL DEFAULT now())",
        prepare=False,
    )
