"""The promises that PostgreSQL and Redis share: crashes, sharing between processes, refusals."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from lightning_core.errors import StoreError
from lightning_core.records.types import Status, Task
from lightning_core.stores import postgres, redis_store
from lightning_core.stores.postgres import PostgresStore
from lightning_core.stores.postgres_connection import MARK, escape, unescape
from lightning_core.stores.redis_store import RedisStore
from tests.build import make_call
from tests.build import make_rollouts as rollouts
from tests.stores import postgres_server, redis_server
from tests.stores.hearing import TRIES, cancel_until_heard

ROOT = Path(__file__).parents[2]
PATIENT = 300.0
NEVER = 3600.0


@dataclass(frozen=True)
class Kind:
    """A kind of server, and what it says."""

    store: Callable[..., PostgresStore | RedisStore]
    begins: str
    """How a URL begins, up to the host."""
    away: str
    """Advice where no server is reached."""
    unfit: dict[str, Any]
    """A field of a call that it can't hold."""
    why: str


KINDS: Final = {
    "postgres": Kind(
        PostgresStore,
        "postgresql",
        "check that the server runs",
        {"policy_version": 2**70},
        "64 bits",
    ),
    "redis": Kind(RedisStore, "redis", "start the server", {"prompt_ids": [-1]}, "-1 is not a token id"),
}


@dataclass(frozen=True)
class Frail:
    """A server that goes down and up."""

    url: Callable[[str], str]
    down: Callable[[], None]
    up: Callable[[], None]


@pytest.fixture(params=KINDS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def kind(name: str) -> Kind:
    return KINDS[name]


@pytest.fixture
def url(name: str, request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(f"{name}_url"))


@pytest.fixture(scope="module")
def frail_postgres() -> Iterator[Frail]:
    with postgres_server.serving() as server:
        yield Frail(lambda place: server.url(schema=place), server.crash, server.start)


@pytest.fixture(scope="module")
def frail_redis() -> Iterator[Frail]:
    with redis_server.serving() as server:
        yield Frail(lambda place: f"{server.url}?prefix={place}:", server.kill, server.start)


@pytest.fixture
def frail(name: str, request: pytest.FixtureRequest) -> Frail:
    found: Frail = request.getfixturevalue(f"frail_{name}")
    return found


@pytest.fixture(autouse=True)
def never_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves waiting clients to the server's messages alone."""
    for module in (postgres, redis_store):
        monkeypatch.setattr(module, "LOOK_SECONDS", NEVER)


def lease_all(url: str) -> subprocess.Popen[str]:
    """A process that leases and finishes rollouts, and prints their ids."""
    command = [sys.executable, "-m", "tests.stores.worker", url, "lease"]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


# crashes --------------------------------------------------------------------------------------
async def test_one_who_waits_hears_what_happens_after_a_crash(kind: Kind, frail: Frail) -> None:
    url = frail.url("waits")
    async with kind.store(url) as store, kind.store(url) as other:
        await store.enqueue(rollouts(1))
        (attempt,) = await store.lease("w", 1, PATIENT)
        finishing = asyncio.create_task(store.wait_finished(["r0"]))
        waiting = asyncio.create_task(store.wait_queued(NEVER))
        await asyncio.sleep(0.05)
        await asyncio.to_thread(frail.down)
        await asyncio.to_thread(frail.up)
        await other.finish(attempt, reward=1.0)
        await other.enqueue([one.model_copy(update={"id": "next"}) for one in rollouts(1)])
        async with asyncio.timeout(PATIENT):
            assert [one.status for one in await finishing] == [Status.SUCCEEDED]
            assert await waiting


async def test_a_server_that_stays_away_is_told_in_words_and_the_store_works_again_when_it_is_back(
    kind: Kind, frail: Frail
) -> None:
    async with kind.store(frail.url("away"), server_timeout=2) as store:
        await store.enqueue(rollouts(1))
        await asyncio.to_thread(frail.down)
        with pytest.raises(StoreError, match=rf"can't be reached: {kind.away}.*refused"):
            await store.enqueue(rollouts(2))
        await asyncio.to_thread(frail.up)
        assert await store.enqueue(rollouts(2)) == 1


async def test_a_store_may_be_closed_while_its_server_is_gone(kind: Kind, frail: Frail) -> None:
    async with kind.store(frail.url("closed"), server_timeout=NEVER) as store:
        await asyncio.to_thread(frail.down)
        adding = asyncio.create_task(store.enqueue(rollouts(1)))
        await asyncio.sleep(0.05)
        assert not adding.done()
    with pytest.raises(StoreError, match="can't be reached"):
        await adding
    with pytest.raises(StoreError, match="is not open"):
        await store.enqueue(rollouts(1))
    await asyncio.to_thread(frail.up)


# sharing --------------------------------------------------------------------------------------
async def test_processes_never_share_a_rollout_and_wake_who_waits_for_them(kind: Kind, url: str) -> None:
    async with kind.store(url) as store:
        await store.enqueue(rollouts(300))
        waiting = asyncio.create_task(store.wait_finished([f"r{i}" for i in range(300)]))
        workers = [lease_all(url) for _ in range(2)]
        finished = await asyncio.wait_for(waiting, PATIENT)
        outputs = [(await asyncio.to_thread(worker.communicate))[0].split() for worker in workers]
    assert {(one.status, one.attempts) for one in finished} == {(Status.SUCCEEDED, 1)}
    done = [name for output in outputs for name in output]
    assert len(done) == len(set(done)) == 300


async def test_another_store_hears_of_work_and_of_cancellations(kind: Kind, url: str) -> None:
    async with kind.store(url) as trainer, kind.store(url) as worker:
        for more in ("", "ü" * 500):  # a notice of PostgreSQL can't hold the second one
            names = [f"r{number}{more}" for number in range(TRIES)]
            waiting = asyncio.create_task(worker.wait_queued(NEVER))
            await trainer.enqueue([rollouts(1)[0].model_copy(update={"id": name}) for name in names])
            async with asyncio.timeout(PATIENT):
                assert await waiting
            await worker.lease(f"w{more}", TRIES, NEVER)
            waiting = asyncio.create_task(worker.wait_cancelled(f"w{more}", NEVER))
            finishing = asyncio.create_task(worker.wait_finished(names[:1]))
            await cancel_until_heard(waiting, names, lambda name: trainer.cancel([name]))
            async with asyncio.timeout(PATIENT):
                assert await waiting
                assert [one.status for one in await finishing] == [Status.CANCELLED]


async def test_the_end_of_thousands_is_told_whole(kind: Kind, url: str) -> None:
    async with kind.store(url) as store:
        await store.enqueue(rollouts(3000))
        waiting = asyncio.create_task(store.wait_finished([f"r{i}" for i in range(3000)]))
        await asyncio.sleep(0.05)
        assert await store.cancel([f"r{i}" for i in range(3000)]) == 3000
        assert len(await asyncio.wait_for(waiting, PATIENT)) == 3000


async def test_many_may_make_the_same_store_at_once(kind: Kind, url: str) -> None:
    stores = [kind.store(url) for _ in range(8)]
    await asyncio.gather(*(store.__aenter__() for store in stores))
    added = await asyncio.gather(*(store.enqueue(rollouts(5)) for store in stores))
    await asyncio.gather(*(store.__aexit__() for store in stores))
    assert sum(added) == 5


# values ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("text", ["", "plain", "nul \0 in it", "a:b", MARK, f"{MARK}0000", "é🦜\n"])
async def test_every_text_comes_back_whole_wherever_it_stands(kind: Kind, url: str, text: str) -> None:
    assert unescape(escape(text)) == text  # as PostgreSQL keeps it
    named = "" if set(text) & {"\0", "\ud83e"} else text  # no id has these
    names = {"id": f"id {named}", "run_id": f"run {named}", "group_id": f"g {named}"}
    asked = rollouts(1)[0].model_copy(update={**names, "task": Task(input={"text": text})})
    async with kind.store(url) as store:
        assert await store.enqueue([asked]) == 1
        assert await store.enqueue([asked]) == 0
        (attempt,) = await store.lease(f"worker {named}", 1, PATIENT, run_id=asked.run_id)
        (kept,) = await store.heartbeat([attempt], PATIENT)
        assert (kept.worker, kept.rollout.task) == (f"worker {named}", asked.task)
        failed = await store.finish(kept, error=text)
        assert {name: getattr(failed, name) for name in names} == names
        assert (failed.task, failed.error) == (asked.task, text)
        assert await store.finish(kept, error=text) == failed
        assert await store.wait_finished([asked.id]) == [failed]
        assert await store.find_rollouts(asked.run_id) == [failed]


async def test_what_can_not_be_stored_harms_no_other_of_the_same_moment(kind: Kind, url: str) -> None:
    async with kind.store(url) as store:
        await store.enqueue(rollouts(1))
        await store.lease("w", 1, PATIENT)
        calls = [make_call(f"c{i}", rollout_id="r0") for i in range(40)]
        calls[20] = calls[20].model_copy(update=kind.unfit)
        results = await asyncio.gather(*map(store.add_call, calls), return_exceptions=True)
        assert [i for i, result in enumerate(results) if result is not None] == [20]
        assert isinstance(results[20], StoreError)
        assert kind.why in str(results[20])
        assert len((await store.get_calls(["r0"]))["r0"]) == 39
        with pytest.raises(StoreError, match="-1 is not a token id"):
            await store.add_call(make_call(rollout_id="r0", prompt_ids=[1, -1]))


# refusals -------------------------------------------------------------------------------------
async def test_a_server_that_is_not_there_is_named(kind: Kind) -> None:
    address = f"127.0.0.1:{redis_server.free_port()}/0"
    with pytest.raises(StoreError) as refused:
        async with kind.store(f"{kind.begins}://user:secret@{address}"):
            pass
    assert f"'{kind.begins}://user@{address}' can't be reached: {kind.away}" in str(refused.value)
    assert "secret" not in str(refused.value)


def test_a_missing_driver_is_told_with_what_to_install(name: str, kind: Kind) -> None:
    driver = {"postgres": "psycopg", "redis": "redis"}[name]
    code = (
        f"import sys; sys.modules[{driver!r}] = None\n"
        "from lightning_core.plugins import load_plugins\n"
        f"load_plugins(only=[]).part('store', {kind.begins!r})('{kind.begins}://h/0')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert f"pip install 'agent-lightning-core[{name}]'" in done.stderr.splitlines()[-1]
