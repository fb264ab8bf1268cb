"""Laws for workers: they lease, hold, finish and give back."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import orjson
import pytest

from lightning_core.gateway.app import Gateway
from lightning_core.gateway.server import GatewayServer
from lightning_core.gateway.tokens import Tokens
from lightning_core.records.types import Member, Rollout, Status
from lightning_core.stores.base import Store
from lightning_core.stores.sqlite import MemoryStore
from tests.api.conftest import RUN, Desk, error, every_kind, open_desk, rollout
from tests.gateway.scripted import ScriptedEngine, until
from tests.stores.hearing import TRIES, cancel_until_heard


@pytest.fixture
async def desk(store: Store) -> AsyncIterator[Desk]:
    async with open_desk(store) as opened:
        yield opened


async def enqueue(desk: Desk, *names: str, **fields: Any) -> None:
    await desk.store.enqueue([Rollout.model_validate(rollout(name, **fields)) for name in names])


async def status(desk: Desk, name: str = "a") -> Status:
    (found,) = await desk.store.get_rollouts([name])
    return found.status


async def test_a_lease_gives_the_most_urgent_first_and_each_to_one_worker(desk: Desk) -> None:
    await enqueue(desk, "a", "b")
    await enqueue(desk, "c", priority=1)
    leases = await desk.lease(limit=2, seconds=30)
    assert [one["attempt"]["rollout"]["id"] for one in leases] == ["c", "a"]
    attempt = leases[0]["attempt"]
    assert (attempt["number"], attempt["worker"], attempt["rollout"]["status"]) == (1, "w1", "running")
    assert len(await desk.lease(limit=2, worker="w2")) == 1
    assert await desk.lease() == []


async def test_a_token_of_one_run_leases_of_that_run_alone(desk: Desk) -> None:
    await enqueue(desk, "theirs", run_id="other", priority=9)
    await enqueue(desk, "mine")
    (lease,) = await desk.lease(limit=5)
    assert lease["attempt"]["rollout"]["id"] == "mine"
    answer = await desk.ask("POST", "/leases", {"worker": "w1", "run_id": "other"}, scope="worker")
    error(answer, 403, "forbidden")
    (lease,) = await desk.lease("all worker", limit=5)
    assert lease["attempt"]["rollout"]["id"] == "theirs"


@every_kind
async def test_a_worker_that_waits_is_given_what_comes(desk: Desk) -> None:
    waiting = asyncio.create_task(desk.lease(wait=60))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await enqueue(desk, "a")
    async with asyncio.timeout(30):
        (lease,) = await waiting
    assert lease["attempt"]["rollout"]["id"] == "a"
    assert await desk.lease(wait=0.05) == []


async def test_a_worker_that_left_while_it_waited_is_given_nothing() -> None:
    left = asyncio.Event()

    class Watched(MemoryStore):
        async def wait_queued(self, timeout: float, *, run_id: str | None = None) -> bool:
            began.set()
            try:
                return await super().wait_queued(timeout, run_id=run_id)
            finally:
                loop.call_soon_threadsafe(left.set)

    async with open_desk(Watched()) as desk:
        loop = asyncio.get_running_loop()
        began = asyncio.Event()
        address = urlsplit(desk.url)
        body = orjson.dumps({"worker": "w1", "wait": 60})
        with socket.create_connection((address.hostname or "", address.port or 0)) as connection:
            head = (
                "POST /api/v1/leases HTTP/1.1\r\nhost: x\r\n"
                f"authorization: Bearer {desk.tokens['worker']}\r\ncontent-length: {len(body)}\r\n\r\n"
            )
            connection.sendall(head.encode() + body)
            await until(began.is_set)
        async with asyncio.timeout(30):
            await left.wait()
        await enqueue(desk, "a")
        assert await status(desk) is Status.QUEUED
        assert len(await desk.lease()) == 1


async def test_a_server_that_stops_answers_those_who_wait() -> None:
    began = asyncio.Event()

    class Watched(MemoryStore):
        async def wait_queued(self, timeout: float, *, run_id: str | None = None) -> bool:
            began.set()
            return await super().wait_queued(timeout, run_id=run_id)

    async with httpx.AsyncClient(timeout=30) as patient:
        async with open_desk(Watched()) as desk:
            patient.base_url = desk.url
            desk.web = patient  # its own would be closed before the server
            waiting = asyncio.create_task(desk.lease(wait=60))
            await until(began.is_set)
        assert await waiting == []


async def test_a_heartbeat_says_what_is_held_and_what_was_lost(desk: Desk) -> None:
    await enqueue(desk, "a", "b", "c")
    a, b, c = [one["key"] for one in await desk.lease(limit=3)]
    await desk.post("/leases/finish", {"key": b, "error": "broke"}, scope="worker")
    await desk.post("/rollouts/cancel", {"rollout_ids": ["c"]})
    beat = await desk.post("/leases/heartbeat", {"keys": [a, b, c], "seconds": 60}, scope="worker")
    assert beat == {"held": [a], "lost": [b, c]}
    assert await desk.post("/leases/heartbeat", {"keys": []}, scope="worker") == {"held": [], "lost": []}


@every_kind
async def test_a_heartbeat_that_waits_hears_of_a_cancellation_at_once(desk: Desk) -> None:
    names = [f"r{number}" for number in range(TRIES)]
    await enqueue(desk, *names)
    keys = {one["attempt"]["rollout"]["id"]: one["key"] for one in await desk.lease(limit=TRIES)}
    body = {"keys": [keys[name] for name in names], "wait": 60}
    waiting = asyncio.create_task(desk.post("/leases/heartbeat", body, scope="worker"))
    cancelled = await cancel_until_heard(
        waiting, names, lambda name: desk.post("/rollouts/cancel", {"rollout_ids": [name]})
    )
    lost = [keys[name] for name in cancelled]
    assert await waiting == {"held": [key for key in keys.values() if key not in lost], "lost": lost}


async def test_a_heartbeat_does_not_wait_until_its_leases_are_lost(desk: Desk) -> None:
    await enqueue(desk, "a")
    (lease,) = await desk.lease()
    body = {"keys": [lease["key"]], "seconds": 0.5, "wait": 60}
    async with asyncio.timeout(30):
        beat = await desk.post("/leases/heartbeat", body, scope="worker")
    assert beat == {"held": [lease["key"]], "lost": []}


async def test_a_finish_may_be_repeated_and_not_changed(desk: Desk) -> None:
    await enqueue(desk, "a")
    (lease,) = await desk.lease()
    body = {"key": lease["key"], "reward": 0.75}
    done = await desk.post("/leases/finish", body, scope="worker")
    assert (done["status"], done["reward"]) == ("succeeded", 0.75)
    assert await desk.post("/leases/finish", body, scope="worker") == done
    answer = await desk.ask("POST", "/leases/finish", {**body, "reward": 0.0}, scope="worker")
    assert "drop its result" in error(answer, 409, "lease_lost")["message"]
    assert [one.value for one in (await desk.store.get_rewards(["a"]))["a"]] == [0.75]


async def test_a_failure_is_tried_again_and_a_release_costs_nothing(desk: Desk) -> None:
    await enqueue(desk, "a", max_attempts=2)
    (first,) = await desk.lease()
    assert await desk.post("/leases/release", {"keys": [first["key"]]}, scope="worker") == {}
    (second,) = await desk.lease()
    queued = await desk.post("/leases/finish", {"key": second["key"], "error": "broke"}, scope="worker")
    assert (queued["status"], queued["error"]) == ("queued", "broke")
    (third,) = await desk.lease()
    failed = await desk.post(
        "/leases/finish", {"key": third["key"], "error": "again", "reward": -1}, scope="worker"
    )
    assert (third["attempt"]["number"], failed["status"], failed["reward"]) == (3, "failed", -1.0)
    error(await desk.ask("POST", "/leases/finish", {"key": first["key"]}, scope="worker"), 409, "lease_lost")


async def test_nobody_ends_what_another_holds(desk: Desk) -> None:
    await enqueue(desk, "a")
    (lease,) = await desk.lease()
    key: str = lease["key"]
    forged = key[:-3] + ("AAA" if key[-3:] != "AAA" else "BBB")
    token_as_key = "ll-" + desk.tokens["worker"].removeprefix("la-")
    for wrong in (forged, "ll-", "x", token_as_key, lease["environment"] or "lt-a.b"):
        answer = await desk.ask("POST", "/leases/finish", {"key": wrong, "reward": 1.0}, scope="worker")
        error(answer, 401, "invalid_token")
    for scope in ("other worker", "all worker"):
        answer = await desk.ask("POST", "/leases/finish", {"key": key, "reward": 1.0}, scope=scope)
        error(answer, 401, "invalid_token")
    assert await status(desk) is Status.RUNNING


async def test_without_a_gateway_there_is_no_environment(desk: Desk) -> None:
    await enqueue(desk, "a")
    (lease,) = await desk.lease()
    assert lease["environment"] is None


@every_kind
async def test_a_leased_rollout_s_calls_are_answered_and_recorded_by_the_run_s_gateway(store: Store) -> None:
    tokens = Tokens(bytes.fromhex(RUN.secret))
    async with (
        open_desk(store) as desk,
        GatewayServer(served := Gateway(ScriptedEngine(), store, tokens, agents=None)) as gateway,
        httpx.AsyncClient() as app,
    ):
        for name, url in (("dead", "http://127.0.0.1:9"), ("alive", gateway.url)):
            data: dict[str, Any] = {"instance": served.instance}
            await store.put_member(Member(run_id="run", role="gateway", name=name, url=url, data=data))
        await enqueue(desk, "a b ö")
        (lease,) = await desk.lease(agent="two words")
        given = lease["environment"]
        headers = {"authorization": f"Bearer {given['OPENAI_API_KEY']}"}
        chat = {"model": "any", "messages": [{"role": "user", "content": "ping"}]}
        said = await app.post(f"{given['OPENAI_BASE_URL']}/chat/completions", json=chat, headers=headers)
        assert said.json()["choices"][0]["message"]["content"] == "ping"
        stored = await app.post(given["LIGHTNING_REWARD_URL"], json={"value": 0.5}, headers=headers)
        assert stored.json() == {"stored": 1}
        done = await desk.post("/leases/finish", {"key": lease["key"]}, scope="worker")
        assert done["reward"] == 0.5
        (call,) = (await desk.get("/calls", rollout_id="a b ö"))["calls"]["a b ö"]
        assert (call["agent"], call["trained"], call["endpoint"]) == ("two words", True, None)
        assert call["choices"][0]["completion_ids"] == [1, 0]
