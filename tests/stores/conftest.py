"""Stores for the laws: every implementation, open and empty, behind one fixture."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import psycopg
import pytest
import redis
from psycopg.sql import SQL, Identifier

from lightning_core.api.access import RunGrant, issue
from lightning_core.api.app import LIMITS, Api
from lightning_core.gateway.server import GatewayServer
from lightning_core.stores import redis_store, sqlite
from lightning_core.stores.base import Store
from lightning_core.stores.http_store import HttpStore
from lightning_core.stores.postgres import PostgresStore
from lightning_core.stores.redis_store import RedisStore
from lightning_core.stores.sqlite import MemoryStore, SqliteStore
from tests.stores import redis_server as redis_servers
from tests.stores.postgres_server import OWN_URL, serving

SECRET = b"signs the tokens of all runs"
KINDS = ("memory", "sqlite", "postgres", "redis")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The URL of a PostgreSQL database; a server is started unless one is named."""
    if named := os.environ.get(OWN_URL):
        yield named
        return
    with serving() as server:
        yield server.url()


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """A place in that database that nobody else uses; gone afterwards if the database is not ours."""
    schema = f"test_{secrets.token_hex(6)}"
    yield f"{postgres_server}{'&' if '?' in postgres_server else '?'}schema={schema}"
    if OWN_URL in os.environ:
        with psycopg.connect(postgres_server, autocommit=True) as connection:
            connection.execute(SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(Identifier(schema)))


@pytest.fixture(scope="session")
def redis_server() -> Iterator[str]:
    """The URL of a Redis database; a server is started unless one is named."""
    if named := os.environ.get(redis_servers.OWN_URL):
        yield named
        return
    with redis_servers.serving() as server:
        yield server.url


@pytest.fixture
def redis_url(redis_server: str) -> Iterator[str]:
    """A place in that database that nobody else uses; empty again afterwards."""
    prefix = f"test_{secrets.token_hex(6)}:"
    yield f"{redis_server}{'&' if '?' in redis_server else '?'}prefix={prefix}"
    with redis.Redis.from_url(redis_server) as client:
        keys = list(client.scan_iter(match=f"{prefix}*", count=1000))
        if keys:
            client.unlink(*keys)


@pytest.fixture
def make_store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], Store]:
    """Makes a store of a kind which nobody else uses; it never polls, so only its own news can wake it."""
    monkeypatch.setattr(redis_store, "LOOK_SECONDS", 600.0)
    monkeypatch.setattr(sqlite, "POLL_SECONDS", 600.0)

    def make(kind: str) -> Store:
        if kind == "postgres":
            return PostgresStore(request.getfixturevalue("postgres_url"))
        if kind == "redis":
            return RedisStore(request.getfixturevalue("redis_url"))
        if kind == "sqlite":
            return SqliteStore(f"sqlite:///{tmp_path / 'runs.db'}")
        return MemoryStore("memory://")

    return make


def with_token(url: str, run_id: str | None = None, secret: bytes = SECRET) -> str:
    """The URL of an API as that of a store, with an admin's token."""
    token = issue(secret, RunGrant("admin", run_id, time.time() + 86_400))
    return url.replace("://", f"://:{token}@")


@asynccontextmanager
async def over_http(behind: Store) -> AsyncIterator[Store]:
    """The store, through an API of its own and with a token for everything."""
    async with (
        behind,
        GatewayServer(Api(behind, secret=SECRET), limits=LIMITS) as server,
        HttpStore(with_token(server.url)) as opened,
    ):
        yield opened


@pytest.fixture(params=(*KINDS, "http"))
async def store(request: pytest.FixtureRequest, make_store: Callable[[str], Store]) -> AsyncIterator[Store]:
    made = over_http(make_store("memory")) if request.param == "http" else make_store(request.param)
    async with made as opened:
        yield opened
