"""Operations that wait for a PostgreSQL connection share one transaction, unnoticed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import psycopg
import pytest

from lightning_core.errors import LightningError, StoreError
from lightning_core.records.types import Attempt, Call, Rollout, Status
from lightning_core.stores import postgres_connection
from lightning_core.stores.postgres import PostgresStore
from lightning_core.stores.postgres_connection import place_of
from tests.build import make_call, make_rollouts
from tests.stores.cutting import relayed
from tests.stores.postgres_server import OWN_URL

LONG = 600.0
PATIENT = 60.0
ours = pytest.mark.skipif(OWN_URL in os.environ, reason="needs a server on this machine")


def rollouts(count: int, name: str = "r", **fields: object) -> list[Rollout]:
    return make_rollouts(count, name, **{"max_attempts": 2, **fields})


def call(attempt: Attempt) -> Call:
    return make_call(rollout_id=attempt.rollout.id, attempt=attempt.number)


def connected(url: str) -> psycopg.Connection:
    return postgres_connection.connect(place_of(url))


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    async with PostgresStore(postgres_url) as opened:
        yield opened


async def test_operations_of_one_moment_share_transactions(store: PostgresStore, postgres_url: str) -> None:
    assert await asyncio.gather(*(store.enqueue([one]) for one in rollouts(40))) == [1] * 40
    leases = await asyncio.gather(*(store.lease(f"w{i}", 1, LONG) for i in range(40)))
    attempts = [attempt for lease in leases for attempt in lease]
    assert len({attempt.rollout.id for attempt in attempts}) == 40
    with connected(postgres_url) as other:
        query = "SELECT count(DISTINCT xmin::text) FROM rollouts"
        (leased,) = other.execute(query).fetchone() or ()
        finish = (store.finish(attempt, reward=1.0) for attempt in attempts)
        assert {one.status for one in await asyncio.gather(*finish)} == {Status.SUCCEEDED}
        (finished,) = other.execute(query).fetchone() or ()
    assert leased < 20
    assert finished < 20


async def test_leases_of_one_moment_follow_the_order_of_the_queue(store: PostgresStore) -> None:
    await store.enqueue(rollouts(20, "later") + rollouts(20, "first", priority=1))
    leases = await asyncio.gather(*(store.lease("w", 1, LONG) for _ in range(40)))
    assert [lease[0].rollout.priority for lease in leases] == [1] * 20 + [0] * 20


async def test_one_that_is_refused_takes_no_other_with_it(store: PostgresStore) -> None:
    new = rollouts(30)
    new[20] = new[20].model_copy(update={"step": 2**70})
    counts = await asyncio.gather(*(store.enqueue([one]) for one in new), return_exceptions=True)
    assert isinstance(counts[20], StoreError)
    assert [count for i, count in enumerate(counts) if i != 20] == [1] * 29
    held = await store.lease("w", 30, LONG)
    await store.cancel([held[7].rollout.id])
    ends = await asyncio.gather(
        *(store.finish(one, reward=float("nan") if i == 3 else 1.0) for i, one in enumerate(held)),
        return_exceptions=True,
    )
    assert [i for i, end in enumerate(ends) if isinstance(end, LightningError)] == [3, 7]
    assert len(await store.find_rollouts("run", status=Status.SUCCEEDED)) == 27


async def test_a_lease_that_ran_out_is_ended_whoever_asks_in_the_same_moment(store: PostgresStore) -> None:
    await store.enqueue(rollouts(10))
    late = await store.lease("dead", 5, -1.0)
    leases = await asyncio.gather(*(store.lease("w", 1, LONG) for _ in range(12)))
    attempts = [attempt for lease in leases for attempt in lease]
    assert len({attempt.rollout.id for attempt in attempts}) == len(attempts) == 10
    again = {attempt.rollout.id for attempt in attempts if attempt.number == 2}
    assert again == {attempt.rollout.id for attempt in late}


@ours
async def test_operations_that_shared_a_lost_answer_are_each_carried_out_once(postgres_url: str) -> None:
    """Cut at the first reply after they began, at the second, and so on, until there is no further one."""

    async def state(url: str, replies: int) -> list[object]:
        name = f"{replies} of {'relay' if url != postgres_url else 'none'} "
        async with PostgresStore(url) as store:
            await store.enqueue(rollouts(8, name, run_id=name))
            await store.lease("dead", 1, -1.0, run_id=name)
            relay.cut_at_reply(replies)
            leases = await asyncio.gather(*(store.lease(f"w{i}", 1, LONG, run_id=name) for i in range(4)))
            # those that shared a lost answer try again one by one, in any order
            held = sorted((one for lease in leases for one in lease), key=lambda one: one.rollout.id)
            await asyncio.gather(
                store.enqueue(rollouts(1, f"{name}new", run_id=name)),
                store.heartbeat(held[:1], LONG),
                store.add_call(call(held[0])),
                store.finish(held[1], reward=1.0),
                store.finish(held[2], error="broke"),
                store.finish(held[3], reward=-1.0, error="broke"),
                store.cancel([f"{name}7"]),
            )
            relay.cut_at_reply(0)
            found = await store.find_rollouts(name)
            rewards = await store.get_rewards([one.id for one in found])
            calls = await store.get_calls([one.id for one in found])
        assert [len(lease) for lease in leases] == [1] * 4
        return [
            (one.status, one.attempts, one.reward, one.error, len(rewards[one.id]), len(calls[one.id]))
            for one in sorted(found, key=lambda one: one.id)
        ]

    with relayed(urlsplit(postgres_url).port or 0) as relay:
        undisturbed = await state(postgres_url, 0)
        through = postgres_url.replace(f":{urlsplit(postgres_url).port}/", f":{relay.port}/")
        for replies in range(1, 20):
            before = relay.cuts
            assert await state(through, replies) == undisturbed
            if relay.cuts == before:
                break
    assert relay.cuts >= 2


async def test_a_rollout_that_another_holds_keeps_no_other_waiting(postgres_url: str) -> None:
    async with PostgresStore(postgres_url) as store:
        await store.enqueue(rollouts(20))
        attempts = await store.lease("w", 20, LONG)
        with connected(postgres_url) as other:
            with other.transaction():
                other.execute("SELECT 1 FROM rollouts WHERE id = 'r10' FOR UPDATE")
                finishing = [asyncio.create_task(store.finish(one, reward=1.0)) for one in attempts]
                async with asyncio.timeout(PATIENT / 4):
                    await asyncio.gather(*finishing[:10], *finishing[11:])
                assert not finishing[10].done()
            async with asyncio.timeout(PATIENT):
                assert (await finishing[10]).status is Status.SUCCEEDED


async def test_those_who_change_the_same_rollouts_in_any_order_never_block_each_other(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", logger="lightning_core.stores.workers")
    async with PostgresStore(postgres_url) as one, PostgresStore(postgres_url) as two:
        await one.enqueue(rollouts(60))
        attempts = await one.lease("w", 60, LONG)
        for _ in range(5):
            await asyncio.gather(
                *(one.heartbeat([attempt], LONG) for attempt in attempts),
                *(two.heartbeat([attempt], LONG) for attempt in reversed(attempts)),
                two.heartbeat(attempts, LONG),
            )
        ends = await asyncio.gather(
            *(one.finish(attempt, reward=1.0) for attempt in attempts),
            *(two.finish(attempt, reward=1.0) for attempt in reversed(attempts)),
            one.heartbeat(attempts, LONG),
        )
        rewards = await one.get_rewards([attempt.rollout.id for attempt in attempts])
    assert len([end for end in ends if isinstance(end, Rollout)]) == 120
    assert {len(given) for given in rewards.values()} == {1}
    failures = [record.exc_info[0] for record in caplog.records if record.exc_info]
    assert psycopg.errors.DeadlockDetected not in failures
