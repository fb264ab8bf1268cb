"""PostgreSQL's promises beyond the laws: crashes of the server, lost replies, sharing between processes, its
own schema, and clear refusals."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from lightning_core.errors import ConfigError, StoreError
from lightning_core.records.types import Attempt, Call, Reward, Rollout, Status, Task
from lightning_core.stores import postgres, postgres_connection
from lightning_core.stores.notifications import KINDS, QUEUED, Notifications
from lightning_core.stores.postgres import NoticeChannels, PostgresListener, PostgresStore
from lightning_core.stores.postgres_connection import may_pass, place_of
from lightning_core.trainer.plan import RolloutPlan
from tests.build import make_call
from tests.build import make_rollouts as rollouts
from tests.stores.cutting import Relay, relayed
from tests.stores.postgres_server import GUARDED, OWN_URL, PostgresServer, serving
from tests.stores.redis_server import free_port

ROOT = Path(__file__).parents[2]
PATIENT = 300.0
ours = pytest.mark.skipif(OWN_URL in os.environ, reason="needs a server that the test may set up")


def call(attempt: Attempt, name: str = "c", **fields: object) -> Call:
    of = {"rollout_id": attempt.rollout.id, "attempt": attempt.number, "prompt_ids": [1] * 500}
    return make_call(name, at=1.0, **{**of, **fields})


def connected(url: str) -> psycopg.Connection:
    """A plain connection that sees the store's tables."""
    return postgres_connection.connect(place_of(url))


def start(url: str, job: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.stores.worker", url, job]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    async with PostgresStore(postgres_url) as opened:
        yield opened


@pytest.fixture(scope="module")
def crashable() -> Iterator[PostgresServer]:
    with serving() as server:
        yield server


@pytest.fixture
def frail(crashable: PostgresServer) -> Iterator[PostgresServer]:
    """A server to crash, which is there again for the next test."""
    yield crashable
    if not crashable.runs:
        crashable.start()


@pytest.fixture
def never_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves waiting clients to notices alone."""
    monkeypatch.setattr(postgres, "LOOK_SECONDS", 3600.0)


# crashes --------------------------------------------------------------------------------------
async def test_a_server_that_crashes_again_and_again_loses_nothing_and_counts_nothing_twice(
    frail: PostgresServer,
) -> None:
    """Each rollout may be tried once: a lease that was lost or given twice would show."""
    count = 240
    finished = asyncio.Semaphore(0)
    async with PostgresStore(frail.url(schema="crashes"), server_timeout=PATIENT) as store:

        async def work(worker: str) -> None:
            while attempts := await store.lease(worker, 3, PATIENT * 10):
                for attempt in attempts:
                    given = Reward(rollout_id=attempt.rollout.id, attempt=1, value=0.5, kind="intermediate")
                    await store.add_call(call(attempt))
                    await store.add_rewards([given], running=True)
                    await store.finish(attempt, reward=1.0)
                    finished.release()

        assert await store.enqueue(rollouts(count)) == count
        waiting = asyncio.create_task(store.wait_finished([f"r{i}" for i in range(count)]))
        working = [asyncio.create_task(work(f"w{i}")) for i in range(6)]
        for crash in range(1, 5):
            for _ in range(count // 6):
                await finished.acquire()
            await asyncio.to_thread(frail.crash)
            await asyncio.sleep(0.02 * crash)
            await asyncio.to_thread(frail.start)
        await asyncio.gather(*working)
        done = await asyncio.wait_for(waiting, PATIENT)
        calls = await store.get_calls([one.id for one in done])
        rewards = await store.get_rewards([one.id for one in done])
    assert {(one.status, one.attempts, one.reward) for one in done} == {(Status.SUCCEEDED, 1, 1.0)}
    assert {len(of_one) for of_one in calls.values()} == {1}
    assert {tuple(one.value for one in of_one) for of_one in rewards.values()} == {(0.5, 1.0)}


@pytest.fixture
def relay(frail: PostgresServer) -> Iterator[Relay]:
    with relayed(frail.port) as relay:
        yield relay


Step = Callable[[PostgresStore, list[Rollout], list[Attempt]], Awaitable[object]]
STEPS: dict[str, Step] = {
    "enqueue": lambda store, mine, _: store.enqueue(mine),
    "lease": lambda store, *_: store.lease("w", 2, PATIENT),
    "heartbeat": lambda store, _, held: store.heartbeat(held, PATIENT),
    "call": lambda store, _, held: store.add_call(call(held[0])),
    "rewards": lambda store, _, held: store.add_rewards(
        [Reward(rollout_id=held[0].rollout.id, attempt=1, value=0.5, kind="intermediate")], running=True
    ),
    "success": lambda store, _, held: store.finish(held[0], reward=1.0),
    "success without reward": lambda store, _, held: store.finish(held[0]),
    "failure": lambda store, _, held: store.finish(held[0], error="broke"),
    "release": lambda store, _, held: store.release(held),
    "reclaim": lambda store, *_: store.reclaim("w"),
    "cancel": lambda store, mine, _: store.cancel([one.id for one in mine[1:]]),
}


@pytest.mark.parametrize("name", STEPS)
async def test_an_operation_whose_answer_was_lost_is_carried_out_once(
    frail: PostgresServer, relay: Relay, name: str
) -> None:
    """Cut at the first reply to it, at the second, and so on, until it needs no further one."""

    async def state(url: str, replies: int) -> list[object]:
        mine = [one.model_copy(update={"id": f"{replies} {one.id}"}) for one in rollouts(3, max_attempts=2)]
        async with PostgresStore(url) as store:
            if name != "enqueue":
                await store.enqueue(mine)
            held = [] if name in ("enqueue", "lease") else await store.lease("w", 2, PATIENT)
            relay.cut_at_reply(replies)
            given = await STEPS[name](store, mine, held)
            relay.cut_at_reply(0)
            ids = [one.id for one in mine]
            calls, rewards = await store.get_calls(ids), await store.get_rewards(ids)
            found = {one.id: one for one in await store.find_rollouts("run")}
            await store.cancel(ids)
        ends: list[object] = [
            (
                now.status,
                now.attempts,
                now.max_attempts,
                now.reward,
                now.error,
                len(calls[now.id]),
                [reward.value for reward in rewards[now.id]],
            )
            for now in (found[one.id] for one in mine)
        ]
        return [*ends, len(given) if isinstance(given, list) else "no attempts"]

    schema = re.sub(r"\W", "_", name)
    undisturbed = await state(frail.url(schema=schema), 0)
    through = frail.url(schema=schema).replace(str(frail.port), str(relay.port))
    for replies in range(1, 10):
        before = relay.cuts
        assert await state(through, replies) == undisturbed
        if relay.cuts == before:
            break
    assert relay.cuts >= 1


async def test_a_store_opens_and_hears_whatever_answer_is_lost_meanwhile(
    frail: PostgresServer, relay: Relay, never_looks: None
) -> None:
    """Cut at the first reply to whoever opens it, at the second, and so on, until there is no further one."""
    url = frail.url(schema="opens")
    async with PostgresStore(url) as other:
        for replies in range(1, 30):
            before = relay.cuts
            relay.cut_at_reply(replies)
            async with PostgresStore(url.replace(str(frail.port), str(relay.port))) as store:
                relay.cut_at_reply(0)
                waiting = asyncio.create_task(store.wait_queued(PATIENT * 10, run_id=str(replies)))
                await asyncio.sleep(0.05)
                (one,) = rollouts(1, run_id=str(replies))
                await other.enqueue([one.model_copy(update={"id": str(replies)})])
                async with asyncio.timeout(PATIENT):
                    assert await waiting
            if relay.cuts == before:
                break
    assert relay.cuts >= 2


async def test_who_hears_news_hangs_up_if_closed_just_as_the_server_is_back(postgres_url: str) -> None:
    made: list[psycopg.Connection] = []
    away, connecting, closing = threading.Event(), threading.Event(), threading.Event()

    def connect() -> psycopg.Connection:
        if not away.is_set():
            away.set()
            psycopg.connect(host="127.0.0.1", port=free_port())
        connecting.set()
        closing.wait(PATIENT)
        made.append(postgres_connection.connect(place_of(postgres_url)))
        return made[0]

    listener = PostgresListener(connect, NoticeChannels("news"), Notifications())
    listener.listen(QUEUED)
    assert await asyncio.to_thread(connecting.wait, PATIENT)
    ending = asyncio.create_task(listener.close())
    await asyncio.sleep(0)
    closing.set()
    await ending
    assert [connection.closed for connection in made] == [True]


# sharing --------------------------------------------------------------------------------------
@pytest.mark.parametrize("foreign", ["hello", "5", "{}", '["r0", {}]'])
async def test_a_notice_of_another_program_harms_nobody(
    postgres_url: str, never_looks: None, foreign: str
) -> None:
    channels = NoticeChannels(place_of(postgres_url).schema)
    async with PostgresStore(postgres_url) as store, PostgresStore(postgres_url) as other:
        await other.enqueue(rollouts(1))
        (attempt,) = await other.lease("w", 1, PATIENT)
        waiting = asyncio.create_task(store.wait_queued(PATIENT * 10))
        finishing = asyncio.create_task(store.wait_finished(["r0"]))
        await asyncio.sleep(0.05)
        with connected(postgres_url) as stranger:
            for kind in KINDS:
                stranger.execute("SELECT pg_notify(%s, %s)", [channels.of(kind), foreign])
        await other.finish(attempt, reward=1.0)
        await other.enqueue(rollouts(2))
        async with asyncio.timeout(PATIENT / 4):
            assert await waiting
            assert [one.status for one in await finishing] == [Status.SUCCEEDED]


@pytest.mark.parametrize("length", [63, 49])
async def test_news_come_through_however_long_the_name_of_the_schema_is(
    postgres_server: str, never_looks: None, length: int
) -> None:
    url = f"{postgres_server}{'&' if '?' in postgres_server else '?'}schema={'s' * length}"
    async with PostgresStore(url) as store, PostgresStore(url) as other:
        waiting = asyncio.create_task(store.wait_queued(PATIENT * 10))
        await asyncio.sleep(0.05)
        await other.enqueue(rollouts(1))
        async with asyncio.timeout(PATIENT / 4):
            assert await waiting


# locks ----------------------------------------------------------------------------------------
async def test_a_lock_that_is_held_too_long_is_told_and_may_pass(postgres_url: str) -> None:
    async with PostgresStore(postgres_url, server_timeout=0.2) as store:
        await store.enqueue(rollouts(1))
        held = await store.lease("w", 1, PATIENT)
        with connected(postgres_url) as other, other.transaction():
            other.execute("SELECT 1 FROM rollouts FOR UPDATE")
            with pytest.raises(StoreError, match="lock timeout") as refused:
                await asyncio.wait_for(store.heartbeat(held, PATIENT), PATIENT / 4)
        assert isinstance(refused.value.__cause__, psycopg.Error)
        assert may_pass(refused.value.__cause__)
        assert len(await store.heartbeat(held, PATIENT)) == 1


# its schema -----------------------------------------------------------------------------------
async def test_a_store_of_the_version_before_is_read_with_the_places_in_its_ids(postgres_url: str) -> None:
    asked, other = RolloutPlan("run", 2, retry=1).train([Task(input={})], 2), rollouts(1)
    async with PostgresStore(postgres_url) as store:
        await store.enqueue([*asked, *other])
    with connected(postgres_url) as old:
        old.execute("ALTER TABLE rollouts DROP COLUMN place, DROP COLUMN retry")
        old.execute("ALTER TABLE calls DROP COLUMN policy")
        old.execute("UPDATE migrations SET version = 5")
    async with PostgresStore(postgres_url) as store:
        assert await store.get_rollouts([one.id for one in (*asked, *other)]) == [*asked, *other]


async def test_a_newer_schema_is_refused(postgres_url: str) -> None:
    async with PostgresStore(postgres_url):
        pass
    with connected(postgres_url) as other:
        other.execute("INSERT INTO migrations VALUES (99)")
    with pytest.raises(StoreError, match=r"schema version 99.*this program reads 8"):
        async with PostgresStore(postgres_url):
            pass


async def test_tables_of_another_program_are_left_alone(postgres_url: str) -> None:
    place = place_of(postgres_url)
    with postgres_connection.connect(place) as other:
        other.execute(f"CREATE SCHEMA {place.schema}")
        other.execute("CREATE TABLE rollouts (url text)")
    with pytest.raises(StoreError, match=f"schema {place.schema!r} .*holds tables of another program"):
        async with PostgresStore(postgres_url):
            pass
    with postgres_connection.connect(place) as other:
        assert other.execute(
            "SELECT count(*) FROM pg_tables WHERE schemaname = %s", [place.schema]
        ).fetchone()


# refusals -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("postgresql:/host/db", "can't be read; write 'postgresql://"),
        ("postgresql://user:top/secret@host/db", "'/' as %2F"),
        ("postgresql://user:top@secret@host/db", "'@' as %40"),
        ("postgresql://user:secret@host/db?colour=red", "no option 'colour'"),
        ("postgresql://user:secret@host:port/db", "can't be read"),
        ("postgresql://user:secret@host/db?schema=Big-Words", "'Big-Words'"),
        ("postgresql://user:secret@host/db?schema=pg_catalog", "'pg_catalog'"),
    ],
)
def test_a_url_that_names_no_database_is_refused_with_a_hint(url: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(hint)) as refused:
        PostgresStore(url)
    assert "secret" not in str(refused.value)


def test_urls_of_sockets_hosts_and_options_are_understood() -> None:
    place = place_of("postgres://u:p%40ss@/db?host=/run/postgresql&schema=mine&connect_timeout=3")
    assert (place.name, place.schema) == ("postgresql://u@/run/postgresql/db", "mine")
    assert (place.conninfo["password"], place.conninfo["connect_timeout"]) == ("p@ss", "3")
    assert "p@ss" not in repr(place)
    two = place_of("postgresql://a:1,b:2/db?target_session_attrs=read-write")
    assert (two.conninfo["host"], two.conninfo["port"]) == ("a,b", "1,2")


def test_the_urls_that_the_docs_show_are_understood() -> None:
    shown = re.findall(
        r"`(?:store=\")?(postgres(?:ql)?://[^`\"]{4,})", (ROOT / "docs" / "stores.md").read_text()
    )
    assert len(shown) >= 4
    for url in shown:
        place_of(url.replace(":port", ":5432"))


async def refusal(url: str) -> str:
    with pytest.raises(StoreError) as refused:
        async with PostgresStore(url, server_timeout=0.1):
            pass
    return str(refused.value)


async def test_a_database_that_is_not_there_is_named(postgres_server: str) -> None:
    database = conninfo_to_dict(postgres_server)["dbname"]
    said = await refusal(re.sub(rf"(?<!/)/{database}\b", "/nowhere", postgres_server))
    assert re.search(r"/nowhere' names a database that is not there: make it with `createdb`", said)


@ours
async def test_a_wrong_password_is_told_and_not_shown(postgres_server: str) -> None:
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {GUARDED} LOGIN PASSWORD 'right'")
    said = await refusal(postgres_server.replace("postgres@", f"{GUARDED}:secret@"))
    assert "refuses the password: check user and password" in said
    assert "secret" not in said
    said = await refusal(postgres_server.replace("postgres@", f"{GUARDED}:right@") + "?schema=locked")
    assert "may not be written by this user: grant it CREATE" in said


@pytest.mark.parametrize(
    ("said", "passes"),
    [
        ("FATAL:  terminating connection due to unexpected postmaster exit", True),
        ("FATAL:  the database system is starting up", True),
        ("Connection refused", True),
        ('FATAL:  password authentication failed for user "me"', False),
        ('FATAL:  database "runs" does not exist', False),
        ("FATAL:  das Datenbanksystem startet gerade", False),
    ],
)
def test_a_server_that_comes_or_goes_is_waited_for_and_a_refusal_is_not(said: str, passes: bool) -> None:
    error = psycopg.OperationalError(f'connection to server at "h", port 1 failed: {said}')
    assert may_pass(error, first=True) is passes
    assert may_pass(error), "one that took us before is waited for, whatever its language"
