"""Redis's promises beyond the laws: crashes of the server, lost replies, sharing between processes, and clear
refusals."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import redis

from lightning_core.errors import ConfigError, LeaseLostError, StoreError
from lightning_core.records.types import Alert, Attempt, Call, Reward, Rollout, Run, Status, Task, ToolEvent
from lightning_core.stores import queue, redis_connection, redis_store
from lightning_core.stores.notifications import Notifications
from lightning_core.stores.redis_connection import read_url
from lightning_core.stores.redis_store import RedisDriver, RedisStore
from lightning_core.trainer.plan import RolloutPlan
from tests.build import make_call
from tests.build import make_rollouts as rollouts
from tests.stores.cutting import Relay, relayed
from tests.stores.hearing import TRIES, cancel_until_heard
from tests.stores.redis_server import RedisServer, serving

ROOT = Path(__file__).parents[2]
PATIENT = 300.0
NEVER = 3600.0


def call(attempt: Attempt, name: str = "c", **fields: object) -> Call:
    of = {"rollout_id": attempt.rollout.id, "attempt": attempt.number, "prompt_ids": [1] * 500}
    return make_call(name, at=1.0, **{**of, **fields})


def alert(name: str) -> Alert:
    return Alert(run_id="run", id=name, rule="r", message="m", created_at=1.0)


def start(url: str, job: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.stores.worker", url, job]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


@pytest.fixture(autouse=True)
def never_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves waiting clients to messages alone."""
    monkeypatch.setattr(redis_store, "LOOK_SECONDS", NEVER)


@pytest.fixture
async def store(redis_url: str) -> AsyncIterator[RedisStore]:
    async with RedisStore(redis_url) as opened:
        yield opened


@pytest.fixture(scope="module")
def killable() -> Iterator[RedisServer]:
    with serving() as server:
        yield server


@pytest.fixture
def frail(killable: RedisServer) -> Iterator[RedisServer]:
    """A server to kill or to hang, which is there again for the next test."""
    yield killable
    killable.kill()
    killable.start()


@pytest.fixture
def relay(frail: RedisServer) -> Iterator[Relay]:
    with relayed(frail.port) as relay:
        yield relay


# crashes --------------------------------------------------------------------------------------
async def test_a_server_that_is_killed_again_and_again_loses_nothing_and_counts_nothing_twice(
    frail: RedisServer,
) -> None:
    """Each rollout may be tried once: a lease that was lost or given twice would show."""
    count, finished = 240, 0
    reached = [asyncio.Event() for _ in range(7)]
    async with RedisStore(f"{frail.url}?prefix=crashes:") as store:

        async def work(worker: str) -> None:
            nonlocal finished
            while attempts := await store.lease(worker, 3, NEVER):
                for attempt in attempts:
                    given = Reward(rollout_id=attempt.rollout.id, attempt=1, value=0.5, kind="intermediate")
                    await store.add_call(call(attempt))
                    await store.add_rewards([given], running=True)
                    await store.finish(attempt, reward=1.0)
                    finished += 1
                    if finished % (count // 6) == 0:
                        reached[finished // (count // 6)].set()

        assert await store.enqueue(rollouts(count)) == count
        waiting = asyncio.create_task(store.wait_finished([f"r{i}" for i in range(count)]))
        working = [asyncio.create_task(work(f"w{i}")) for i in range(6)]
        for crash in range(1, 5):
            await reached[crash].wait()
            await asyncio.to_thread(frail.kill)
            await asyncio.sleep(0.02 * crash)
            await asyncio.to_thread(frail.start)
        await asyncio.gather(*working)
        done = await asyncio.wait_for(waiting, PATIENT)
        calls = await store.get_calls([one.id for one in done])
        rewards = await store.get_rewards([one.id for one in done])
    assert len(done) == count
    assert {(one.status, one.attempts, one.reward) for one in done} == {(Status.SUCCEEDED, 1, 1.0)}
    assert {len(of_one) for of_one in calls.values()} == {1}
    assert {tuple(one.value for one in of_one) for of_one in rewards.values()} == {(0.5, 1.0)}


Step = Callable[[RedisStore, list[Attempt]], Awaitable[object]]
STEPS: dict[str, Step] = {
    "enqueue": lambda store, _: store.enqueue(rollouts(5)),
    "lease": lambda store, _: store.lease("w", 2, PATIENT),
    "lease of late ones": lambda store, _: store.lease("w", 2, PATIENT),
    "heartbeat": lambda store, held: store.heartbeat(held, PATIENT),
    "call": lambda store, held: store.add_call(call(held[0])),
    "rewards": lambda store, held: store.add_rewards(
        [Reward(rollout_id=held[0].rollout.id, attempt=1, value=0.5, kind="intermediate")], running=True
    ),
    "judged": lambda store, held: store.add_rewards([Reward(rollout_id="r1", attempt=1, value=0.5)]),
    "success": lambda store, held: store.finish(held[0], reward=1.0),
    "success without reward": lambda store, held: store.finish(held[0]),
    "failure": lambda store, held: store.finish(held[0], error="broke"),
    "release": lambda store, held: store.release(held),
    "reclaim": lambda store, held: store.reclaim("w"),
    "cancel": lambda store, held: store.cancel(["r0", "r2"]),
    "alerts": lambda store, _: store.add_alerts([alert("a"), alert("b")]),
}


def shown(answer: object) -> object:
    """Returns an operation's answer, without the times in it."""
    if isinstance(answer, list):
        return [shown(one) for one in answer]
    if isinstance(answer, Attempt):
        return shown(answer.rollout), answer.number, answer.worker
    if isinstance(answer, Rollout):
        return answer.id, answer.status, answer.attempts, answer.max_attempts, answer.reward, answer.error
    return answer


async def outcome(url: str, name: str, relay: Relay, replies: int) -> list[object]:
    """Returns the operation's answer and the records it leaves, if that reply to it is lost."""
    async with RedisStore(url) as store:
        held: list[Attempt] = []
        if name not in ("enqueue",):
            await store.enqueue(rollouts(3, max_attempts=2))
            await store.add_alerts([alert("a")])
        if name not in ("enqueue", "lease"):
            held = await store.lease("w", 2, -1.0 if name == "lease of late ones" else PATIENT)
        relay.cut_at_reply(replies)
        answer = await STEPS[name](store, held)
        relay.cut_at_reply(0)
        found = await store.find_rollouts("run")
        names = [one.id for one in found]
        calls, rewards = await store.get_calls(names), await store.get_rewards(names)
        recorded = [(one, len(calls[one]), [given.value for given in rewards[one]]) for one in names]
        alerts = [one.id for one in await store.list_alerts("run")]
        running = sum(one.status is Status.RUNNING for one in found)
        assert await store.reclaim("w") == running
        return [shown(answer), shown(found), recorded, alerts]


@pytest.mark.parametrize("name", STEPS)
async def test_an_operation_whose_answer_was_lost_is_carried_out_once(
    frail: RedisServer, relay: Relay, name: str
) -> None:
    """Cut at the first reply to it, at the second, and so on, until it needs no further one."""
    prefix = re.sub(r"\W", "_", name)
    undisturbed = await outcome(f"{frail.url}?prefix={prefix}_0:", name, relay, 0)
    for replies in range(1, 20):
        before = relay.cuts
        through = f"redis://127.0.0.1:{relay.port}/0?prefix={prefix}_{replies}:"
        assert await outcome(through, name, relay, replies) == undisturbed
        if relay.cuts == before:
            break
    assert relay.cuts >= 1


async def test_a_server_that_hangs_is_asked_again_and_does_nothing_twice(
    frail: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads the first tries after all, when nobody waits for their answers any more."""
    monkeypatch.setattr(redis_connection, "ANSWER_SECONDS", 1.0)
    async with RedisStore(f"{frail.url}?prefix=hangs:") as store:
        assert await store.enqueue(rollouts(200)) == 200
        await store.lease("w", 1, NEVER)
        frail.hang()
        leasing = [asyncio.create_task(store.lease("w", 1, NEVER)) for _ in range(20)]
        while store._writer._lost_at is None:  # noqa: ASYNC110 - nothing tells that a try was given up
            await asyncio.sleep(0.05)
        frail.go_on()
        leases = await asyncio.wait_for(asyncio.gather(*leasing), PATIENT)
        running = await store.find_rollouts("run", status=Status.RUNNING)
        assert await store.lease("w", 200 - len(running), NEVER)
    taken = [attempt.rollout.id for lease in leases for attempt in lease]
    assert len(taken) == len(set(taken)) == 20 == len(running) - 1


async def test_a_try_that_comes_after_a_later_one_takes_nothing(store: RedisStore) -> None:
    """It has read, and decided what to write, before its connection was lost."""
    driver = RedisDriver(store._link, Notifications(), writes=True)
    connections = [driver.connect()]

    def lease(then: Callable[[], object]) -> Attempt:
        with driver.transaction(connections[-1], []):
            (attempt,) = queue.lease(connections[-1], "w", 1, NEVER, None)
            then()
        return attempt

    await store.enqueue(rollouts(3))
    with pytest.raises(redis.ConnectionError, match="writes in place"):
        lease(lambda: connections.append(driver.connect()))
    await store.finish(lease(list), reward=1.0)
    assert len(await store.find_rollouts("run", status=Status.QUEUED)) == 2
    for connection in connections:
        driver.close(connection)


async def test_scripts_that_the_server_forgot_are_given_to_it_again(
    store: RedisStore, redis_server: str
) -> None:
    with redis.Redis.from_url(redis_server) as client:
        client.script_flush()
    assert await store.enqueue(rollouts(2)) == 2


# sharing --------------------------------------------------------------------------------------
async def test_a_killed_process_loses_nothing_it_was_told_is_stored(
    store: RedisStore, redis_url: str
) -> None:
    await store.enqueue(rollouts(1))
    recorder = start(redis_url, "record")
    assert recorder.stdout is not None
    said = [recorder.stdout.readline() for _ in range(60)]
    recorder.kill()
    said += recorder.stdout.readlines()
    recorder.stdout.close()
    recorder.wait()
    told = {line.strip() for line in said if line.endswith("\n")}
    kept = (await store.get_calls(["r0"]))["r0"]
    assert len(told) >= 60
    assert told <= {one.id for one in kept}
    assert all(len(one.prompt_ids or []) == 1000 for one in kept)


@pytest.mark.parametrize("harm", ["no subscriptions", "hung up under the reader"])
async def test_news_come_again_after_their_connection_broke_on_this_side(
    store: RedisStore, redis_url: str, harm: str
) -> None:
    async with RedisStore(redis_url) as trainer:
        for name in ("first", "second"):
            waiting = asyncio.create_task(store.wait_queued(NEVER))
            if name == "second":
                while (connection := store._listener._connection) is None:  # noqa: ASYNC110 - nothing tells of it
                    await asyncio.sleep(0.01)
                if harm == "no subscriptions":
                    connection.send_command("UNSUBSCRIBE")
                    connection.send_command("PING")
                else:
                    connection.disconnect()
            await asyncio.sleep(0.05)
            await trainer.enqueue([one.model_copy(update={"id": name}) for one in rollouts(1)])
            async with asyncio.timeout(PATIENT / 4):
                assert await waiting
            await store.lease("w", 1, PATIENT)


async def test_any_number_of_workers_share_one_subscription(
    store: RedisStore, redis_url: str, redis_server: str
) -> None:
    for name in range(50):
        assert not await store.wait_cancelled(f"w{name}", 0.0)
    assert await store.enqueue(rollouts(TRIES)) == TRIES
    mine = [attempt.rollout.id for attempt in await store.lease("w7", TRIES, NEVER)]
    waiting = asyncio.create_task(store.wait_cancelled("w7", NEVER))
    async with RedisStore(redis_url) as trainer:
        await cancel_until_heard(waiting, mine, lambda name: trainer.cancel([name]))
    assert await waiting
    with redis.Redis.from_url(redis_server) as client:
        prefix = redis_url.partition("prefix=")[2]
        assert len(client.pubsub_channels(f"{prefix}*")) == 1


async def test_one_who_waits_for_work_wakes_when_a_lease_runs_out(store: RedisStore) -> None:
    await store.enqueue(rollouts(1, max_attempts=2))
    await store.lease("dead", 1, 0.2)
    async with asyncio.timeout(PATIENT):
        assert await store.wait_queued(NEVER)
        assert [one.number for one in await store.lease("alive", 1, PATIENT)] == [2]


async def test_changes_of_one_rollout_by_many_at_once_come_one_after_another(
    store: RedisStore, redis_url: str
) -> None:
    """Two stores end, extend, release, cancel and reward the same rollouts at once."""
    await store.enqueue(rollouts(60, max_attempts=3))
    ended = []

    async def finish(by: RedisStore, attempt: Attempt) -> None:
        try:
            ended.append(await by.finish(attempt, reward=1.0))
        except LeaseLostError:
            return

    async with RedisStore(redis_url) as other:
        attempts = await store.lease("w", 60, PATIENT)
        cancelled, released = [f"r{i}" for i in range(0, 60, 3)], attempts[1::3]
        rewards = [Reward(rollout_id=f"r{i}", attempt=1, value=float(i)) for i in range(60)]
        await asyncio.gather(
            store.cancel(cancelled),
            other.release(released),
            *(finish(by, attempt) for attempt in attempts for by in (store, other)),
            *(by.heartbeat(attempts, PATIENT) for by in (store, other)),
            *(other.add_rewards([reward]) for reward in rewards),
        )
        found = {one.id: one for one in await store.find_rollouts("run")}
        given = await store.get_rewards(list(found))
        queued = {name for name, one in found.items() if one.status is Status.QUEUED}
        again = await store.lease("w", 60, PATIENT)
    assert {attempt.rollout.id for attempt in again} == queued
    assert queued <= {attempt.rollout.id for attempt in released}
    assert all(found[one.id] == one for one in ended)
    succeeded = {name for name, one in found.items() if one.status is Status.SUCCEEDED}
    assert succeeded == {one.id for one in ended}
    assert {name for name, one in found.items() if one.status is Status.CANCELLED} <= {*cancelled}
    values = {name: sorted(one.source for one in of_one) for name, of_one in given.items()}
    assert all(values[name] == ["app"] * (1 + (name in succeeded)) for name in found)


async def test_prefixes_and_databases_are_stores_of_their_own(redis_url: str) -> None:
    base, prefix = redis_url.split("?prefix=")
    elsewhere = f"{base.rsplit('/', 1)[0]}/1?prefix={prefix}"
    for url in (redis_url, f"{base}?prefix={prefix}b:", elsewhere):
        async with RedisStore(url) as store:
            assert await store.list_runs() == []
            await store.put_run(Run(id="run"))
    with redis.Redis.from_url(elsewhere.split("?")[0]) as client:
        client.delete(*client.keys(f"{prefix}*"))


# values ---------------------------------------------------------------------------------------
async def test_calls_and_events_that_started_at_once_stay_in_the_order_they_came(store: RedisStore) -> None:
    await store.enqueue(rollouts(1))
    (attempt,) = await store.lease("w", 1, PATIENT)
    names = [f"{i * 7 % 300}" for i in range(300)]
    for name in names:
        await store.add_call(call(attempt, name))
    tool = ToolEvent(id="", rollout_id="r0", attempt=1, agent="w", name="f", started_at=1.0, ended_at=1.0)
    await store.add_events([tool.model_copy(update={"id": name}) for name in names])
    assert [one.id for one in (await store.get_calls(["r0"]))["r0"]] == names
    assert [one.id for one in (await store.get_events(["r0"]))["r0"]] == names


async def test_priorities_of_any_size_keep_the_order_of_arrival_among_equals(store: RedisStore) -> None:
    for i, priority in enumerate([0, 2**40, -(2**40), 2**40 + 1, 0, 2**40]):
        await store.enqueue(
            [one.model_copy(update={"id": f"p{i}"}) for one in rollouts(1, priority=priority)]
        )
    leased = [attempt.rollout.id for attempt in await store.lease("w", 9, PATIENT)]
    assert leased == ["p3", "p1", "p5", "p0", "p4", "p2"]


async def test_what_is_given_twice_in_one_operation_keeps_its_first_place(store: RedisStore) -> None:
    reward = Reward(rollout_id="r0", attempt=0, value=1.0)
    await store.add_rewards([reward, reward])
    assert (await store.get_rewards(["r0"]))["r0"] == [reward, reward]
    assert await store.add_alerts([alert("b"), alert("a"), alert("b")]) == 2
    assert [one.id for one in await store.list_alerts("run")] == ["b", "a"]
    first, second = rollouts(2)
    assert await store.enqueue([first, second, first]) == 2
    assert await store.find_rollouts("run") == [first, second]


# its place in the server ----------------------------------------------------------------------
async def test_a_store_of_the_version_before_is_read_with_the_places_in_its_ids(
    redis_url: str, redis_server: str
) -> None:
    asked, other = RolloutPlan("run", 2, retry=1).train([Task(input={})], 2), rollouts(1)
    async with RedisStore(redis_url) as store:
        await store.enqueue([*asked, *other])
    prefix = redis_url.partition("prefix=")[2]
    with redis.Redis.from_url(redis_server) as old:
        old.set(f"{prefix}schema", 5)
        for one in (*asked, *other):
            key = f"{prefix}body:{one.id}"
            body = json.loads(old.get(key))  # type: ignore[arg-type]
            old.set(key, json.dumps({name: body[name] for name in body.keys() - {"place", "retry"}}))
    async with RedisStore(redis_url) as store:
        assert await store.get_rollouts([one.id for one in (*asked, *other)]) == [*asked, *other]


async def test_a_newer_schema_is_refused(redis_url: str, redis_server: str) -> None:
    with redis.Redis.from_url(redis_server) as client:
        client.set(f"{redis_url.partition('prefix=')[2]}schema", 99)
    assert "schema version 99, this program reads 8" in await refusal(redis_url)


async def test_no_key_is_outside_the_prefix(store: RedisStore, redis_url: str, redis_server: str) -> None:
    await store.enqueue(rollouts(3))
    with redis.Redis.from_url(redis_server) as client:
        prefix = redis_url.partition("prefix=")[2].encode()
        ours = [key for key in client.scan_iter(count=1000) if key.startswith(prefix)]
        assert len(ours) == len(list(client.scan_iter(count=1000))) > 8


# refusals -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("redis://", "names no Redis server: write 'redis://localhost:6379/0'"),
        ("redis:///0", "names no Redis server"),
        ("redis://user:secret@host/first", "after the host comes a number"),
        ("redis://user:secret@host/0?prefix=", "empty prefix"),
        ("redis://user:secret@host/0?colour=red", "no option 'colour'"),
        ("rediss://user:secret@host/0?ssl_colour=red", "ssl_colour"),
        ("redis://user:secret@host:port/0", "can't be read"),
        ("redis://user:top/secret@host/0", "'/' in a password as %2F"),
        ("redis://user:top#secret@host/0", "'#' as %23"),
        ("redis://:secret?x@host:6379/0", "'?' as %3F"),
        ("redis://:secret?x", "can't be read"),
    ],
)
def test_a_url_that_names_no_database_is_refused_with_a_hint(url: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(hint)) as refused:
        RedisStore(url)
    assert "secret" not in str(refused.value)


def test_users_databases_and_options_are_understood() -> None:
    place = read_url("rediss://u:p%40ss@host:7000/3?prefix=mine:&ssl_cert_reqs=none")
    assert place.shown == "rediss://u@host:7000/3?prefix=mine:&ssl_cert_reqs=none"
    assert place.prefix == "mine:"
    assert (place.options["password"], place.options["db"], place.options["port"]) == ("p@ss", 3, 7000)
    assert read_url("redis://host").prefix == "lightning:"
    assert "p@ss" not in repr(place)


async def refusal(url: str) -> str:
    with pytest.raises(StoreError) as refused:
        async with RedisStore(url):
            pass
    return str(refused.value)


async def test_a_database_that_is_not_there_is_named(frail: RedisServer) -> None:
    said = await refusal(frail.url.removesuffix("/0") + "/999")
    assert "/999' has no database of that number" in said


async def test_a_guarded_server_refuses_in_words(caplog: pytest.LogCaptureFixture) -> None:
    with serving(requirepass="right") as server:
        host = server.url.removeprefix("redis://")
        for url in (f"redis://:secret@{host}", f"redis://u:secret@{host}", server.url):
            said = await refusal(url)
            assert "refused user or password" in said
            assert "secret" not in said
        async with RedisStore(f"redis://:right@{host}") as store:
            assert await store.enqueue(rollouts(1)) == 1
    assert caplog.text == ""


async def test_a_cluster_is_refused_by_name() -> None:
    with serving(**{"cluster-enabled": "yes"}) as server:
        assert "is a Redis Cluster, which is not supported" in await refusal(server.url)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"appendonly": "no"}, "loses what was recorded when its server ends: set 'appendonly yes'"),
        ({"appendfsync": "everysec"}, "may lose the last seconds"),
        (
            {"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"},
            "deletes records when its memory is full",
        ),
    ],
)
async def test_a_server_that_may_lose_records_is_warned_of(
    caplog: pytest.LogCaptureFixture, settings: dict[str, str], said: str
) -> None:
    with serving(**settings) as server:
        async with RedisStore(server.url):
            pass
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert said in caplog.text


async def test_a_user_with_the_rights_to_the_prefix_alone_is_enough(caplog: pytest.LogCaptureFixture) -> None:
    """As on hosted servers, which keep their configuration to themselves."""
    with serving(appendonly="no") as server:
        with redis.Redis.from_url(server.url) as client:
            rights = "on >right ~mine:* resetchannels &mine:* +@all -@admin -config"
            client.execute_command("ACL", "SETUSER", "lightning", *rights.split())
        mine = server.url.replace("//", "//lightning:right@")
        async with RedisStore(f"{mine}?prefix=mine:") as store:
            waiting = asyncio.create_task(store.wait_queued(NEVER))
            assert await store.enqueue(rollouts(1)) == 1
            async with asyncio.timeout(PATIENT):
                assert await waiting
        assert "loses what was recorded" in caplog.text
        assert "forbids a command" in await refusal(f"{mine}?prefix=yours:")


async def test_the_settings_that_the_docs_advise_lose_nothing(caplog: pytest.LogCaptureFixture) -> None:
    (advised,) = re.findall(r"```conf\n(appendonly.*?)```", (ROOT / "docs/stores.md").read_text(), re.DOTALL)
    settings = dict(line.split() for line in advised.splitlines())
    with serving(**settings) as server:
        async with RedisStore(server.url):
            pass
    assert len(settings) == 3
    assert caplog.text == ""


async def test_a_full_server_refuses_in_words_and_keeps_the_rest() -> None:
    with serving(maxmemory="20mb") as server:
        async with RedisStore(server.url) as store:
            await store.put_run(Run(id="run"))
            big = Run(id="big", config={"text": "x" * 8_000_000})
            putting = [store.put_run(big.model_copy(update={"id": f"big{i}"})) for i in range(9)]
            with pytest.raises(StoreError, match="is full: raise its maxmemory"):
                await asyncio.gather(*putting)
            assert await store.find_run("run") is not None
