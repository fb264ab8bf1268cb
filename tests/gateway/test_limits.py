"""How much a client may send, and how fast: strangers next to nothing, and no one without end."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import httpx
import orjson
import pytest

from lightning_core.gateway.limits import Limits
from lightning_core.gateway.rewards import MOST
from lightning_core.gateway.wire import read_content
from tests.gateway.conftest import House, open_house
from tests.gateway.raw import exchange, head
from tests.gateway.scripted import ScriptedEngine

CHAT = "/v1/chat/completions"
BODY = orjson.dumps({"messages": [{"role": "user", "content": "hi there"}]})
READING = (
    CHAT,
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/traces",
    "/rollouts/r1/rewards",
    "/no",
)
HUGE = 400_000_000
PIECE = bytes(2**16)
MOST_TAKEN = 60_000_000
"""Bytes that the network's buffers take, and a server that drops what comes after its answer."""


async def still_answers(house: House, token: str) -> None:
    async with httpx.AsyncClient(base_url=house.url, timeout=30) as web:
        reply = await web.post(CHAT, content=BODY, headers={"authorization": f"Bearer {token}"})
        assert reply.status_code == 200


@pytest.mark.parametrize("path", READING)
async def test_a_stranger_is_refused_before_a_body_is_read(house: House, path: str) -> None:
    request = head(path, f"content-length: {HUGE}", "content-type: application/json")
    unsent = await exchange(house.url, [request])
    assert unsent.status == (404 if path == "/no" else 401)
    sent = await exchange(house.url, (request if not n else PIECE for n in range(HUGE // len(PIECE))))
    assert sent.sent < MOST_TAKEN


@pytest.mark.parametrize("path", READING[:-1])
async def test_a_body_that_is_too_long_is_refused_unread_by_its_announced_length(
    house: House, path: str
) -> None:
    token = f"authorization: Bearer {await house.rollout()}"
    answer = await exchange(
        house.url, [head(path, token, f"content-length: {HUGE}", "content-type: application/json")]
    )
    assert answer.status == 413
    assert "20971520 bytes" in answer.content.decode()


@pytest.mark.parametrize("path", READING[:-1])
async def test_a_body_without_a_length_is_refused_once_it_is_too_long(path: str) -> None:
    async with open_house(limits=Limits(body_bytes=100_000)) as house:
        token = f"authorization: Bearer {await house.rollout()}"
        piece = b"10000\r\n" + PIECE + b"\r\n"
        request = head(path, token, "transfer-encoding: chunked", "content-type: application/json")
        answer = await exchange(house.url, (request if not n else piece for n in range(2000)))
        assert answer.status == 413
        assert answer.sent < MOST_TAKEN


async def test_a_slow_body_is_refused_and_holds_up_no_other() -> None:
    async with open_house(limits=Limits(body_seconds=0.3)) as house:
        token = await house.rollout()
        request = head(CHAT, f"authorization: Bearer {token}", "content-length: 1000")
        answer = await exchange(house.url, [request, *[b" "] * 500], pause=0.02)
        assert (answer.status, answer.code) == (408, "too_slow")
        assert answer.sent < len(request) + 500
        await still_answers(house, token)
        assert await house.calls() == [await house.one_call()]  # the good one alone


ENDLESS: dict[str, tuple[bytes, bytes]] = {
    "one header": (b"GET /healthz HTTP/1.1\r\nx: ", b"y" * 2**16),
    "many headers": (b"GET /healthz HTTP/1.1\r\n", b"x-long: yy\r\n" * 2**12),
    "an address": (b"GET /healthz?", b"y" * 2**16),
    "no request": (b"", b"\r\n" * 2**15),
    "trailers": (
        head(CHAT, "authorization: Bearer TOKEN", "transfer-encoding: chunked") + b"1\r\n{\r\n0\r\n",
        b"x-long: yy\r\n" * 2**12,
    ),
}


@pytest.mark.parametrize("name", ENDLESS)
async def test_a_head_without_an_end_is_refused(house: House, name: str) -> None:
    first, more = ENDLESS[name]
    token = await house.rollout()
    first = first.replace(b"TOKEN", token.encode())
    answer = await exchange(house.url, (first if not n else more for n in range(1000)))
    assert answer.sent < MOST_TAKEN
    assert answer.status == (0 if name == "trailers" else 431)
    await still_answers(house, token)


async def test_a_long_head_is_refused_though_it_comes_at_once(house: House) -> None:
    token = await house.rollout()
    for headers, status in (("a" * 60_000, 200), ("a" * 66_000, 431)):
        request = head(
            CHAT, f"authorization: Bearer {token}", f"content-length: {len(BODY)}", f"x: {headers}"
        )
        answer = await exchange(house.url, [request + BODY], shut=True)
        assert answer.status == status


async def test_a_slow_head_is_refused_and_a_silent_connection_closed() -> None:
    async with open_house(limits=Limits(head_seconds=0.3)) as house:
        for first in (b"GET /healthz HTTP/1.1\r\nx: ", b"GET /"):
            answer = await exchange(house.url, [first, *[b"y"] * 500], pause=0.02)
            assert (answer.status, answer.code) == (408, "too_slow")
            assert answer.sent < 500
        assert (await exchange(house.url, [])).content == b""
        token = await house.rollout()
        async with asyncio.timeout(30):
            reader, writer = await asyncio.open_connection(*house.url.removeprefix("http://").split(":"))
            writer.write(head("/healthz", method="GET"))
            assert b"200 OK" in await reader.readuntil(b"}")
            writer.write(b"\r\n")  # stands for nothing, and does not keep the connection for good
            assert await reader.read() == b""
            writer.close()
        await still_answers(house, token)


async def test_a_request_may_take_longer_than_its_head_and_a_connection_serves_many() -> None:
    engine = ScriptedEngine(delay=0.3)
    async with open_house(engine, limits=Limits(head_seconds=0.2, body_seconds=0.2)) as house:
        token = await house.rollout()
        headers = {"authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(base_url=house.url, timeout=30) as web:
            for _ in range(2):
                reply = await web.post(CHAT, content=BODY, headers=headers)
                assert (reply.status_code, reply.headers.get("connection")) == (200, None)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_closes_its_side_after_the_request_gets_its_answer(
    house: House, stream: bool
) -> None:
    body = orjson.dumps({**orjson.loads(BODY), "stream": stream})
    token = f"authorization: Bearer {await house.rollout()}"
    answer = await exchange(house.url, [head(CHAT, token, f"content-length: {len(body)}") + body], shut=True)
    assert answer.content.count(b"HTTP/1.1 200 OK") == 1
    assert b"hi there" in answer.content if not stream else b"[DONE]" in answer.content
    assert (await house.one_call()).status == "completed"


async def test_a_client_that_closes_its_side_may_wait_for_long() -> None:
    async with open_house(ScriptedEngine(delay=1.5)) as house:
        token = f"authorization: Bearer {await house.rollout()}"
        request = head(CHAT, token, f"content-length: {len(BODY)}") + BODY
        answer = await exchange(house.url, [request], shut=True)
        assert answer.status == 200
        assert (await house.one_call()).status == "completed"


async def test_half_a_request_is_not_waited_for_when_its_client_has_closed(house: House) -> None:
    token = f"authorization: Bearer {await house.rollout()}"
    answer = await exchange(house.url, [head(CHAT, token, "content-length: 100") + b"{"], shut=True)
    assert answer.content == b""
    assert await house.calls() == []


async def post_rewards(house: House, token: str, body: Any) -> httpx.Response:
    async with httpx.AsyncClient(base_url=house.url, timeout=60) as web:
        headers = {"authorization": f"Bearer {token}"}
        return await web.post("/rollouts/r1/rewards", json=body, headers=headers)


async def test_rewards_of_one_request_are_bounded_in_number_and_length(house: House) -> None:
    token = await house.rollout()
    many = await post_rewards(house, token, [{"value": 1.0}] * (MOST + 1))
    assert (many.status_code, many.json()["error"]["code"]) == (413, "too_large")
    for field, length in (("reason", 10_001), ("agent", 501), ("call", 501), ("id", 501)):
        long = await post_rewards(house, token, [{"value": 1.0}, {"value": 1.0, field: "x" * length}])
        assert (long.status_code, long.json()["error"]["param"]) == (400, f"[1].{field}")
    assert (await house.store.get_rewards(["r1"]))["r1"] == []
    assert (
        await post_rewards(house, token, [{"value": 1.0, "reason": "x" * 10_000}] * MOST)
    ).status_code == 200


async def test_a_long_body_is_read_off_the_event_loop() -> None:
    async def thread_of(content: bytes) -> int:
        return await read_content(content, lambda _: threading.get_ident())

    assert await thread_of(b"{}") == threading.get_ident()
    assert await thread_of(bytes(2**20)) != threading.get_ident()
