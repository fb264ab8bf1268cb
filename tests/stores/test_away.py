"""A server that stays away is waited for once, not anew by every operation: so its clients can end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from lightning_core.errors import StoreError
from lightning_core.stores.base import Store
from lightning_core.stores.postgres import PostgresStore
from lightning_core.stores.redis_store import RedisStore
from tests.stores import postgres_server, redis_server

PATIENCE = 2.0
OPERATIONS = 40
HANGS = 60.0
"""Seconds: less than all operations would take if each of them waited."""


class Away:
    """A server that can go away, and a store in it."""

    def __init__(self, kind: str, stack: ExitStack) -> None:
        if kind == "postgres":
            postgres = stack.enter_context(postgres_server.serving())
            self.store: Store = PostgresStore(postgres.url(), server_timeout=PATIENCE)
            self.go, self.come = postgres.crash, postgres.start
        else:
            redis = stack.enter_context(redis_server.serving())
            self.store = RedisStore(redis.url, server_timeout=PATIENCE)
            self.go, self.come = redis.kill, redis.start


@pytest.fixture(params=["postgres", "redis"])
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
