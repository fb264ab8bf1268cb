"""URLs of PostgreSQL stores, and what goes wrong with their servers, in words.

No message ever holds the password, nor any part of a URL that may hold one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from lightning_core.errors import ConfigError, StoreError

FORM = "postgresql://user:password@host:port/database?schema=lightning"
SCHEMA = "lightning"
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
"""What a server says in English that is coming or going, and will take connections later."""

LOCKED = "55P03"
"""Another transaction has held a lock for too long."""
IDLE = "25P03"
"""The server has ended our transaction, as we were silent for too long."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a store lies: how to connect, and what to call it."""

    conninfo: dict[str, Any] = field(repr=False)
    """libpq's settings, the password among them."""
    schema: str
    """The PostgreSQL schema that holds the tables."""
    name: str
    """For messages: without the password."""


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
    return Place({**_DEFAULTS, **given}, schema, name)


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
    schema = ours[-1].removeprefix("schema=") if ours else SCHEMA
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
    """What a PostgreSQL error means for the user: what happened, to which store, what to do next."""
    said = " ".join(str(error).split())
    return StoreError(f"the store {place.name!r} {_meaning(error, said)} ({said})")


def _meaning(error: psycopg.Error, said: str) -> str:
    state = error.sqlstate
    if state is None and isinstance(error, psycopg.OperationalError):
        if "authentication failed" in said or "no password" in said:
            return "refuses the password: check user and password in its URL, or set PGPASSWORD or PGPASSFILE"
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
