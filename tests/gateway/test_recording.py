"""The recording laws: nothing an app has seen is lost, and nothing is counted twice."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import openai
import orjson
import pytest
from openai.types.chat import ChatCompletionChunk

from lightning_core.errors import StoreError
from lightning_core.records.types import Call
from lightning_core.stores.sqlite import MemoryStore, SqliteStore
from tests.gateway.conftest import House, drain, open_house
from tests.gateway.scripted import Line, ScriptedEngine, until

HI: list[Any] = [{"role": "user", "content": "one two three four"}]
BODY = {"model": "m", "messages": HI}


class FullStore(MemoryStore):
    """A store whose disk is full."""

    async def add_call(self, call: Call, *, running: bool = False) -> None:
        raise StoreError("no space left on '/data/runs.db'; free some and try again")


class SlowStore(MemoryStore):
    """A store that takes a while, and says when it is done."""

    added = 0

    async def add_call(self, call: Call, *, running: bool = False) -> None:
        await asyncio.sleep(0.1)
        await super().add_call(call, running=running)
        self.added += 1


async def leave(asked: Coroutine[Any, Any, object], when: Callable[[], object]) -> None:
    """Make a request, and hang up once `when` holds."""
    request = asyncio.create_task(asked)
    await until(when)
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request


async def test_a_reply_waits_for_its_record() -> None:
    store = SlowStore()
    async with open_house(store=store) as house:
        client = house.client(await house.rollout())
        await client.chat.completions.create(model="m", messages=HI)
        assert store.added == 1


async def test_a_reply_that_can_not_be_recorded_is_withheld() -> None:
    async with open_house(store=FullStore()) as house:
        client = house.client(await house.rollout())
        with pytest.raises(openai.InternalServerError, match="no space left") as caught:
            await client.chat.completions.create(model="m", messages=HI)
        assert caught.value.status_code == 503
        assert caught.value.code == "store_failed"


async def test_a_stream_that_can_not_be_recorded_never_finishes() -> None:
    async with open_house(store=FullStore()) as house:
        client = house.client(await house.rollout())
        stream = await client.chat.completions.create(model="m", messages=HI, stream=True)
        chunks: list[ChatCompletionChunk] = []
        with pytest.raises(openai.APIError, match="no space left"):
            await drain(stream, chunks)
        assert {chunk.choices[0].finish_reason for chunk in chunks} == {None}


async def test_an_engine_failure_is_an_error_and_a_failed_call() -> None:
    async with open_house(ScriptedEngine(fails_after=2)) as house:
        client = house.client(await house.rollout())
        with pytest.raises(openai.InternalServerError, match="out of memory") as caught:
            await client.chat.completions.create(model="m", messages=HI)
        assert caught.value.code == "engine_failed"
        call = await house.one_call()
        assert call.status == "failed"
        assert call.choices[0].completion_ids == house.engine.encode("one two")
        assert house.engine.closed == 1


async def test_an_engine_that_stops_without_a_finish_reason_has_failed() -> None:
    async with open_house(ScriptedEngine(breaks_off_after=2)) as house:
        client = house.client(await house.rollout())
        with pytest.raises(openai.InternalServerError, match="before choice 0 had a finish reason"):
            await client.chat.completions.create(model="m", messages=HI)
        assert (await house.one_call()).status == "failed"


async def test_the_sdks_retries_of_a_failed_call_are_one_call() -> None:
    engine = ScriptedEngine(fails_after=1)
    async with open_house(engine) as house:
        token = await house.rollout()
        headers = {"x-lightning-call": "same"}
        with pytest.raises(openai.InternalServerError):
            await house.client(token).chat.completions.create(model="m", messages=HI, extra_headers=headers)
        engine.fails_after = None
        await house.client(token).chat.completions.create(model="m", messages=HI, extra_headers=headers)
        assert (await house.one_call()).status == "completed"


async def test_a_client_that_leaves_frees_the_engine_and_is_recorded_as_cancelled() -> None:
    async with open_house(ScriptedEngine(pause_after=2)) as house:
        client = house.client(await house.rollout())
        await leave(client.chat.completions.create(model="m", messages=HI), lambda: house.engine.paused)
        call = await house.one_call()
        assert call.status == "cancelled"
        assert call.choices[0].completion_ids == house.engine.encode("one two")
        assert call.choices[0].finish_reason is None
        await until(lambda: house.engine.closed == 1)


async def test_a_client_that_leaves_while_it_is_held_is_recorded_too(house: House) -> None:
    house.engine.held = threading.Event()
    client = house.client(await house.rollout())
    await leave(client.chat.completions.create(model="m", messages=HI), lambda: house.engine.requests)
    call = await house.one_call()
    assert (call.status, call.prompt_ids, call.policy_version) == ("cancelled", None, None)
    assert house.engine.opened == 0


async def test_a_retry_takes_the_place_of_a_try_that_still_runs() -> None:
    engine = ScriptedEngine(pause_after=2)
    async with open_house(engine) as house, httpx.AsyncClient(base_url=house.url, timeout=60) as web:
        headers = {"authorization": f"Bearer {await house.rollout()}", "x-lightning-call": "same"}
        first = asyncio.create_task(web.post("/v1/chat/completions", json=BODY, headers=headers))
        await until(lambda: engine.opened == 1)
        second = asyncio.create_task(web.post("/v1/chat/completions", json=BODY, headers=headers))
        refused = await first
        assert refused.status_code == 409
        assert refused.json()["error"]["code"] == "superseded"
        assert engine.closed == 1
        engine.resume.set()
        assert (await second).status_code == 200
        assert (await house.one_call()).status == "completed"


async def test_a_try_that_is_waited_for_is_sent_again_where_one_given_up_is_read_after_it() -> None:
    engine = ScriptedEngine(pause_after=2)
    async with open_house(engine) as house, httpx.AsyncClient(base_url=house.url, timeout=60) as web:
        token, named = await house.rollout(), {"x-lightning-call": "same"}
        client = house.client(token).with_options(max_retries=2)
        asked = client.chat.completions.create(model="m", messages=HI, extra_headers=named)
        waiting = asyncio.create_task(asked)
        await until(lambda: engine.opened == 1)
        headers = {"authorization": f"Bearer {token}", **named}
        given_up = asyncio.create_task(web.post("/v1/chat/completions", json=BODY, headers=headers))
        await until(lambda: engine.opened == 3)
        engine.resume.set()
        assert (await waiting).choices[0].finish_reason == "stop"
        assert (await given_up).status_code == 409
        assert (await house.one_call()).status == "completed"


async def test_a_late_cancellation_never_overwrites_the_retry_that_succeeded() -> None:
    engine = ScriptedEngine(pause_after=2)
    async with open_house(engine) as house:
        token = await house.rollout()
        headers = {"x-lightning-call": "same"}
        first = house.client(token).chat.completions.create(model="m", messages=HI, extra_headers=headers)
        await leave(first, lambda: engine.paused)
        engine.resume.set()
        await house.client(token).chat.completions.create(model="m", messages=HI, extra_headers=headers)
        await until(lambda: engine.closed == 2)
        calls = await house.calls()  # the first was cancelled, or had come to its end before
        assert calls[0].id == "same"
        assert {call.status for call in calls} == {"completed"}


async def test_a_stopping_gateway_ends_open_calls_at_once_and_records_them() -> None:
    engine = ScriptedEngine(pause_after=2)
    async with httpx.AsyncClient(timeout=60) as web:
        async with open_house(engine) as house:
            store, headers = house.store, {"authorization": f"Bearer {await house.rollout()}"}
            web.base_url = house.url
            whole = asyncio.create_task(web.post("/v1/chat/completions", json=BODY, headers=headers))
            stream = asyncio.create_task(
                web.post("/v1/chat/completions", json={**BODY, "stream": True}, headers=headers)
            )
            await until(lambda: engine.opened == 2)
            await web.get("/healthz")  # leaves an idle connection behind
        assert (await whole).status_code == 503
        assert "the gateway was stopped" in (await stream).text
    calls = (await store.get_calls(["r1"]))["r1"]
    assert [call.status for call in calls] == ["cancelled", "cancelled"]
    assert engine.closed == 2


async def test_a_client_that_never_reads_does_not_hold_up_a_stop_or_lose_its_record() -> None:
    words = " ".join(f"word{i}" for i in range(1000))
    engine = ScriptedEngine(says=lambda request, choice: Line(f"{words} {choice}"))
    async with open_house(engine) as house:
        store, token = house.store, await house.rollout()
        body = orjson.dumps({**BODY, "stream": True, "logprobs": True, "n": 100})
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n"
        host, port = house.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port), limit=1)
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        await until(lambda: engine.closed == 1)
        assert await house.calls() == []
    writer.close()
    (call,) = (await store.get_calls(["r1"]))["r1"]
    assert call.choices[99].finish_reason == "stop"


async def test_a_blocked_app_does_not_block_the_gateway(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    async with SqliteStore(f"sqlite:///{path}") as store, open_house(store=store) as house:
        client = house.client(await house.rollout())
        asked = asyncio.create_task(client.chat.completions.create(model="m", messages=HI))
        await until(lambda: house.engine.requests)
        with closing(sqlite3.connect(path)) as reader:  # the app does nothing else until its call is stored
            for _ in range(400):
                if reader.execute("SELECT count(*) FROM calls").fetchone() == (1,):
                    break
                time.sleep(0.05)  # noqa: ASYNC251
            else:
                pytest.fail("the call was not stored while the app was busy")
        await asked


def said(number: int) -> str:
    """Returns the words of a call and of its reply. A reply that its client does not wait for takes a
    while."""
    count = 100 if number % 10 == 7 else number % 9 + 1
    return " ".join(f"n{number}w{i}" for i in range(count))


async def test_three_hundred_mixed_calls_at_once_are_recorded_without_a_mistake() -> None:
    async with (
        open_house(ScriptedEngine(delay=0.001), agents=("a*",)) as house,
        httpx.AsyncClient(base_url=house.url, timeout=60, limits=httpx.Limits(max_connections=None)) as web,
    ):
        tokens = {f"r{i}": await house.rollout(f"r{i}") for i in range(10)}

        async def ask(number: int) -> None:
            rollout = f"r{number % 10}"
            agent = f"{'ab'[number % 2]}-{number % 7}"
            headers = {"authorization": f"Bearer {tokens[rollout]}", "x-lightning-call": f"c{number}"}
            base = f"/rollouts/{rollout}/agents/{agent}" if number % 3 == 0 else ""
            if not base:
                headers["x-lightning-agent"] = agent
            body = {
                "model": agent,
                "messages": [{"role": "user", "content": said(number)}],
                "stream": number % 4 == 1,
            }
            if number % 10 == 7:
                await hurry(f"{base}/v1/chat/completions", body, headers)
                return
            reply = await web.post(f"{base}/v1/chat/completions", json=body, headers=headers)
            assert reply.status_code == 200
            assert f"n{number}w0" in reply.text

        async def hurry(path: str, body: dict[str, Any], headers: dict[str, str]) -> None:
            try:
                await web.post(path, json=body, headers=headers, timeout=httpx.Timeout(60, read=0.0005))
            except httpx.ReadTimeout:
                return

        await asyncio.gather(*(ask(number) for number in range(300)))
        await until(lambda: house.engine.closed == house.engine.opened)
        found: dict[str, Call] = {}
        for _ in range(6000):
            for calls in (await house.store.get_calls(tokens)).values():
                found.update({call.id: call for call in calls})
            if len(found) == 300:
                break
            await asyncio.sleep(0.01)
        assert "cancelled" in {call.status for call in found.values()}
        for number in range(300):
            call = found[f"c{number}"]
            assert call.rollout_id == f"r{number % 10}"
            assert call.agent == call.model == f"{'ab'[number % 2]}-{number % 7}"
            assert call.trained == (number % 2 == 0)
            if call.status == "completed":
                words = house.engine.encode(said(number))
                assert call.choices[0].message["content"] == said(number)
                assert call.prompt_ids == words
                assert call.choices[0].completion_ids == [*words, 0]
            else:
                assert (call.status, number % 10) == ("cancelled", 7)
