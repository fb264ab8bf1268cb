"""A page costs what it holds, however many rollouts there are: counted in rows read, not in seconds."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
import redis

from lightning_core.records.types import Status
from lightning_core.stores import postgres_connection, sql
from lightning_core.stores.base import Store
from lightning_core.stores.postgres import PostgresStore
from lightning_core.stores.postgres_connection import place_of
from lightning_core.stores.queue import Page
from lightning_core.stores.redis_store import RedisStore
from lightning_core.stores.sqlite import MemoryStore, SqliteStore, connect
from tests.stores.conftest import KINDS
from tests.stores.test_laws import enqueue_many

SMALL, LARGE, LIMIT = 200, 4000, 10
LOOKS: tuple[dict[str, Any], ...] = (
    {},
    {"newest": True},
    {"step": 3},
    {"split": "validation"},
    {"status": Status.QUEUED},
    {"status": Status.RUNNING, "newest": True},
    {"order": "reward"},
    {"order": "reward", "newest": True},
)


def page_of(look: dict[str, Any], after: str) -> Page:
    wanted = {name: value for name, value in look.items() if name not in ("newest", "order")}
    rest = {name: look[name] for name in look.keys() - wanted.keys()}
    return Page("run", wanted, after=None if "order" in look else after, limit=LIMIT, **rest)


async def read_of(store: Store, request: pytest.FixtureRequest, look: dict[str, Any], after: str) -> float:
    """Returns the cost of a page: virtual machine steps, rows or elements."""
    if isinstance(store, PostgresStore):
        return rows_of_postgres(request.getfixturevalue("postgres_url"), page_of(look, after))
    if isinstance(store, RedisStore):
        return await elements_of_redis(request.getfixturevalue("redis_url"), store, look, after)
    steps = 0

    def count() -> None:
        nonlocal steps
        steps += 1

    if isinstance(store, MemoryStore):
        connection = store._reader.connection
        connection.raw.set_progress_handler(count, 1)
        await store.find_rollouts("run", **look, after=None if "order" in look else after, limit=LIMIT)
        connection.raw.set_progress_handler(None, 1)
        return steps
    assert isinstance(store, SqliteStore)
    connection = connect(store.path)
    connection.raw.set_progress_handler(count, 1)
    connection.page(page_of(look, after))
    connection.raw.close()
    return steps


def rows_of_postgres(url: str, page: Page) -> float:
    """Rows that the nodes of the plan have touched, those that a filter removed included."""
    query = sql.paging(page).replace("?", "%b")
    key = [*page.wanted.values(), "run"]
    places = [(-9.0, 0), (9.0, sql.ALL)] if page.order == "reward" else [(60,), (sql.ALL,)]
    with closing(postgres_connection.connect(place_of(url))) as connection:
        if page.order == "reward":
            connection.execute("ANALYZE rollouts")  # autovacuum does it within a minute
        explain = f"EXPLAIN (ANALYZE, FORMAT JSON) {query}"
        ((plan,),) = connection.execute(explain, (*key, *places[0], *key, *places[1], LIMIT)).fetchall()
    return touched(plan[0]["Plan"])


def touched(plan: dict[str, Any]) -> float:
    own = sum(plan.get(name, 0) for name in ("Actual Rows", "Rows Removed by Filter"))
    return float(own + sum(map(touched, plan.get("Plans", []))))


async def elements_of_redis(url: str, store: Store, look: dict[str, Any], after: str) -> float:
    """Bytes that the server has sent for it."""
    with redis.Redis.from_url(url.split("?")[0]) as client:
        await store.find_rollouts("run", limit=1)  # connected
        before = client.info("stats")["total_net_output_bytes"]
        await store.find_rollouts("run", **look, after=None if "order" in look else after, limit=LIMIT)
        return float(client.info("stats")["total_net_output_bytes"] - before)


@pytest.mark.parametrize("look", LOOKS, ids=lambda look: "-".join(look) or "all")
@pytest.mark.parametrize("kind", KINDS)
async def test_a_page_costs_the_same_among_twenty_times_as_many(
    request: pytest.FixtureRequest, make_store: Callable[[str], Store], kind: str, look: dict[str, Any]
) -> None:
    async with make_store(kind) as store:
        await enqueue_many(store, SMALL)
        small = await read_of(store, request, look, "run:60")
        await enqueue_many(store, LARGE)
        await enqueue_many(store, SMALL, "other")
        large = await read_of(store, request, look, "run:60")
        page = await store.find_rollouts("run", **look, limit=LIMIT)
    assert len(page) == LIMIT
    assert 0 < large < 1.5 * small + LIMIT
