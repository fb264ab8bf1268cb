"""Reaching a Redis server: the address in a URL, connections, what is checked at open, and errors in words.

It uses the driver's blocking connection: measured over loopback with calls of 6 KB, an operation among 64 at
once takes 24 µs, with the driver's asyncio connections 93.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, cast
from urllib.parse import parse_qsl, urlencode, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.connection import Connection as DriverConnection
from redis.connection import parse_url
from redis.retry import Retry

from lightning_core.errors import ConfigError, StoreError
from lightning_core.stores.credentials import advice, takes_none
from lightning_core.texts.masking import without_password

log = logging.getLogger(__name__)

SCHEMA_VERSION = 8
OLDER = ("5", "6", "7")
"""Versions that are read too: before 6 without fields that `legacy` fills in, before 7 each call was whole,
and before 8 no call had a policy."""
ANSWER_SECONDS = 30.0
"""After how long without an answer a server is taken for gone."""
LOST = (redis.ConnectionError, redis.TimeoutError, redis.exceptions.NoScriptError, redis.ReadOnlyError)
"""Errors that another try may mend: the server is gone, starts again, is no longer the first of its replicas,
or has forgotten the scripts."""


class Connection(Protocol):
    """The part of the driver's blocking connections that is used."""

    def connect(self) -> None: ...
    def disconnect(self) -> None: ...
    def send_command(self, *command: Any) -> None: ...
    def pack_commands(self, commands: Iterable[tuple[Any, ...]]) -> list[bytes]: ...
    def send_packed_command(self, command: Iterable[bytes]) -> None: ...
    def can_read(self, timeout: float) -> bool: ...
    def read_response(self) -> Any: ...


PASSWORD = "REDISCLI_AUTH"
"""The environment variable with the password for a URL without one, as for redis-cli."""


@dataclass(frozen=True, slots=True)
class RedisUrl:
    """`redis://[user:password@]host[:port][/database][?prefix=...]`, or `rediss://` for TLS."""

    shown: str
    """The URL without its password, for messages."""
    prefix: str
    """The beginning of all keys."""
    options: dict[str, Any] = field(repr=False)
    """The driver's."""
    advice: str = ""
    """Why the environment's password was not sent, and what to do."""

    @property
    def channels(self) -> str:
        """The beginning of all channels, which the databases of a server share."""
        return f"{self.prefix}{self.options.get('db', 0)}:"


def read_url(url: str) -> RedisUrl:
    """The address that a URL names. Raises ConfigError, without the password."""
    scheme, _, rest = url.partition("://")
    if "@" in rest.partition("/")[2] or "#" in rest or "?" in rest.rpartition("@")[0]:
        raise ConfigError(
            f"a store URL {scheme}://... can't be read: write '/' in a password as %2F, '?' as %3F, '@' as "
            "%40 and '#' as %23"
        )
    try:
        parts = urlsplit(url)
        shown = without_password(url)
        port = parts.port
    except ValueError:  # it quotes what may be a password
        raise ConfigError(
            f"a store URL {scheme}://... can't be read: write 'redis://localhost:6379/0', with user and "
            "password as in 'redis://user:password@localhost:6379/0'"
        ) from None
    if scheme not in ("redis", "rediss") or not parts.hostname or port == 0:
        raise ConfigError(f"store {shown!r} names no Redis server: write 'redis://localhost:6379/0'")
    if not (parts.path.strip("/") or "0").isdecimal():
        raise ConfigError(f"store {shown!r} names no database: after the host comes a number, as in '/0'")
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    prefix = query.pop("prefix", "lightning:")
    if not prefix:
        raise ConfigError(f"store {shown!r} has an empty prefix: give one, or leave out 'prefix='")
    for name in query:
        if scheme == "redis" or not name.startswith("ssl_"):
            raise ConfigError(
                f"store {shown!r} has no option {name!r}: there are 'prefix' and, with rediss://, 'ssl_...'"
            )
    try:
        options = parse_url(parts._replace(query=urlencode(query)).geturl())  # type: ignore[no-untyped-call]
        kind = options.pop("connection_class", DriverConnection)
        if "password" not in options and PASSWORD in os.environ and not takes_none(url):
            options["password"] = os.environ[PASSWORD]
        kind(**options)
    except (TypeError, ValueError, redis.RedisError) as error:
        raise ConfigError(f"store {shown!r} can't be used: {error}") from error
    return RedisUrl(shown, prefix, {**options, "connection_class": kind}, advice(PASSWORD, url))


class RedisLink:
    """Makes connections to one server that know the scripts."""

    def __init__(self, url: RedisUrl, scripts: Mapping[str, str]) -> None:
        self.url = url
        self._sources = scripts
        options = dict(url.options)
        self._kind = options.pop("connection_class")
        self._options = {
            "socket_timeout": ANSWER_SECONDS,
            "socket_connect_timeout": min(ANSWER_SECONDS, 10.0),
            "socket_keepalive": True,
            **options,
            "encoding_errors": "surrogatepass",
            "retry": Retry(NoBackoff(), 0),
        }
        self.scripts: dict[str, bytes] = {}
        """The server's name of each script."""

    def connect(self) -> Connection:
        """A new connection. Raises one of `LOST` if another try may do, else StoreError."""
        connection = cast(Connection, self._kind(**self._options))
        try:
            connection.connect()
            for name, script in self._sources.items():
                self.scripts[name] = ask(connection, "SCRIPT LOAD", script)
        except redis.RedisError as error:
            connection.disconnect()
            if may_pass(error):
                raise
            raise self.in_words(error) from error
        return connection

    def check(self, server_timeout: float) -> None:
        """Make sure that this is a server we can use and a prefix that is ours. Raises StoreError.

        One that is still reading its data is waited for, up to `server_timeout` seconds.
        """
        deadline = time.monotonic() + server_timeout
        while True:
            try:
                connection = self.connect()
                break
            except LOST as error:
                loading = isinstance(error, redis.exceptions.BusyLoadingError)
                if not loading or time.monotonic() > deadline:
                    raise self.in_words(error) from error
                time.sleep(0.05)
        try:
            information = _lines(ask(connection, "INFO"))
            _check_server(information, self.url)
            _check_schema(connection, self.url)
            _warn_of_losses(connection, information, self.url)
        except redis.RedisError as error:
            raise self.in_words(error) from error
        finally:
            connection.disconnect()

    def in_words(self, error: Exception) -> StoreError:
        """Turns a driver's error into one that says what happened, to which server, and what to do next."""
        said = f"the store {self.url.shown!r}"
        match error:
            case redis.AuthenticationError():
                todo = self.url.advice or f"correct them in the URL, or set {PASSWORD}"
                return StoreError(f"{said} refused user or password ({error}): {todo}")
            case redis.exceptions.NoPermissionError():
                return StoreError(f"{said} forbids a command ({error}): give the user all rights to its keys")
            case redis.exceptions.BusyLoadingError():
                return StoreError(f"{said} is still reading its data: try again later ({error})")
            case redis.TimeoutError():
                return StoreError(f"{said} does not answer: look after server and network ({error})")
            case redis.ConnectionError():
                return StoreError(f"{said} can't be reached: start the server or correct the URL ({error})")
        if "OOM command" in str(error):  # from within a script
            return StoreError(f"{said} is full: raise its maxmemory, or delete what is not needed ({error})")
        if "MISCONF" in str(error):
            return StoreError(f"{said} can't write to its disk: give it room ({error})")
        if "DB index" in str(error):
            return StoreError(
                f"{said} has no database of that number: use a lower one, such as '/0' ({error})"
            )
        return StoreError(f"{said} refused an operation ({error})")


def ask(connection: Connection, *command: Any) -> Any:
    """The server's answer to one command."""
    connection.send_command(*command)
    return connection.read_response()


def may_pass(error: BaseException) -> bool:
    """Whether another try may do."""
    return isinstance(error, LOST) and not isinstance(error, redis.AuthenticationError)


def _check_server(information: dict[str, str], url: RedisUrl) -> None:
    if information.get("cluster_enabled") == "1":
        raise StoreError(
            f"the store {url.shown!r} is a Redis Cluster, which is not supported: use a single server "
            "(with replicas, if you like)"
        )
    version = information.get("redis_version", "0")
    if int(version.partition(".")[0]) < 6:
        raise StoreError(f"the store {url.shown!r} is Redis {version}: use 6.2 or newer")


def _check_schema(connection: Connection, url: RedisUrl) -> None:
    key = f"{url.prefix}schema"
    ask(connection, "SET", key, SCHEMA_VERSION, "NX")
    version = ask(connection, "GET", key).decode(errors="replace")
    if version in OLDER:
        ask(connection, "SET", key, SCHEMA_VERSION)
        return
    if version != str(SCHEMA_VERSION):
        raise StoreError(
            f"the store {url.shown!r} has schema version {version}, this program reads {SCHEMA_VERSION}: "
            "use the program that wrote it, or another '?prefix='"
        )


def _warn_of_losses(connection: Connection, information: dict[str, str], url: RedisUrl) -> None:
    """Say in the log if the server is set up so that what it has accepted may be lost."""
    advice = "set 'appendonly yes' and 'appendfsync always'"
    if information.get("aof_enabled") == "0":
        log.warning("the store %r loses what was recorded when its server ends: %s", url.shown, advice)
    elif _syncs(connection) not in ("always", None):
        log.warning(
            "the store %r may lose the last seconds when its server or machine crashes: %s", url.shown, advice
        )
    evicts = information.get("maxmemory_policy", "noeviction")
    if information.get("maxmemory", "0") != "0" and evicts != "noeviction":
        log.warning(
            "the store %r deletes records when its memory is full (maxmemory-policy %s): set 'noeviction'",
            url.shown,
            evicts,
        )


def _syncs(connection: Connection) -> str | None:
    """When the server's file is synced to its disk; None if it may not be asked, as hosted ones may not."""
    try:
        answer = ask(connection, "CONFIG", "GET", "appendfsync")
    except redis.ResponseError:
        return None
    return str(answer[1].decode()) if answer else None


def _lines(answer: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in answer.decode().splitlines())
    return {name: value for name, colon, value in lines if colon}


def read(connection: Connection) -> Any:
    """The next answer; one that refuses its command is returned, so that the others are read too."""
    try:
        return connection.read_response()
    except redis.ResponseError as error:
        if may_pass(error):
            raise
        if "-READONLY" in str(error):  # from within a script
            raise redis.ReadOnlyError(str(error)) from error
        return error
