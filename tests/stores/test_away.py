"""A server that stays away is waited for once, not anew by every operation: so its clients can end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from lightning_core.api.app import Api
from lightning_core.errors import StoreError
from lightning_core.gateway.server import ServerThread
from lightning_core.stores.base import Store
from lightning_core.stores.http_store import HttpStore
from lightning_core.stores.postgres import PostgresStore
from lightning_core.stores.redis_store import RedisStore
from lightning_core.stores.sqlite import MemoryStore
from tests.stores import postgres_server, redis_server
from tests.stores.conftest import SECRET, with_token

PATIENCE = 2.0
OPERATIONS = 40
HANGS = 60.0
"""Seconds: less than all operations would take if each of them waited."""


class ApiServer:
    """The REST API of a store in memory, at one port."""

    def __init__(self) -> None:
        self.port = redis_server.free_port()
        self.url = with_token(f"http://127.0.0.1:{self.port}")
        self.start()

    def start(self) -> None:
        api = Api(MemoryStore(), secret=SECRET)
        self._thread = ServerThread(api.app(), api.abort, "lightning-api")
        self._thread.start(port=self.port)

    def close(self) -> None:
        self._thread.stop()


class Away:
    """A server that can go away, and a store in it."""

    def __init__(self, kind: str, stack: ExitStack) -> None:
        if kind == "postgres":
            postgres = stack.enter_context(postgres_server.serving())
            self.store: Store = PostgresStore(postgres.url(), server_timeout=PATIENCE)
            self.go, self.come = postgres.crash, postgres.start
        elif kind == "http":
            api = stack.enter_context(closing(ApiServer()))
            self.store = HttpStore(api.url, server_timeout=PATIENCE)
            self.go, self.come = api.close, api.start
        else:
            redis = stack.enter_context(redis_server.serving())
            self.store = RedisStore(redis.url, server_timeout=PATIENCE)
            self.go, self.come = redis.kill, redis.start


@pytest.fixture(params=["postgres", "redis", "http"])
def away(request: pytest.FixtureRequest) -> Iterator[Away]:
    with ExitStack() as stack:
        yield Away(request.param, stack)


async def test_a_server_that_stays_away_is_waited_for_once(away: Away) -> None:
    async with away.store as store:
        assert await store.list_runs() == []
        await asyncio.to_thread(away.go)
        async with asyncio.timeout(HANGS):
            for _ in range(OPERATIONS):
                with pytest.raises(StoreError):
                    await store.list_runs()
        await asyncio.to_thread(away.come)
        assert await store.list_runs() == []
        await asyncio.to_thread(away.go)
        asking = asyncio.create_task(store.list_runs())
        await asyncio.to_thread(away.come)  # it is waited for again
        assert await asking == []
