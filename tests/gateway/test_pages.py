"""Without a token: web pages are refused, and strangers can't touch one another's calls."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import httpx
import orjson
import pytest

from lightning_core.records.types import Call
from lightning_core.stores.sqlite import MemoryStore
from tests.gateway.conftest import House, open_house
from tests.gateway.scripted import ScriptedEngine, until

CHAT = "/v1/chat/completions"
BODY = orjson.dumps({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9})
PATHS = (CHAT, "/v1/completions", "/v1/responses", "/v1/messages")
JSON = {"content-type": "application/json"}


async def post(house: House, path: str = CHAT, **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(base_url=house.url) as web:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        return await web.post(path, content=BODY, headers=names)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({**JSON, "host": "evil.example"}, 403, "foreign_host"),
        ({**JSON, "host": "evil.example:8000"}, 403, "foreign_host"),
        ({**JSON, "host": "127.0.0.1.evil.example"}, 403, "foreign_host"),
        ({**JSON, "host": "localhost@evil.example"}, 403, "foreign_host"),
        ({**JSON, "host": ""}, 403, "foreign_host"),
        ({**JSON, "host": "[::1"}, 403, "foreign_host"),
        ({**JSON, "origin": "https://evil.example"}, 403, "foreign_origin"),
        ({**JSON, "origin": "null"}, 403, "foreign_origin"),
        ({**JSON, "origin": "http://localhost:3000"}, 403, "foreign_origin"),
        ({"content-type": "text/plain"}, 415, "unsupported_media_type"),
        ({"content-type": "application/x-www-form-urlencoded"}, 415, "unsupported_media_type"),
        ({"content-type": "multipart/form-data; boundary=application/json"}, 415, "unsupported_media_type"),
        ({}, 415, "unsupported_media_type"),
    ],
)
async def test_what_a_page_may_send_is_refused_and_not_run(
    path: str, headers: dict[str, str], status: int, code: str
) -> None:
    async with open_house(anonymous=True) as house:
        reply = await post(house, path, **headers)
        assert reply.status_code == status
        assert code in reply.text or path == "/v1/messages"
        assert house.engine.requests == []


async def test_a_page_does_not_learn_what_is_served() -> None:
    async with open_house(anonymous=True) as house, httpx.AsyncClient(base_url=house.url) as web:
        assert (await web.get("/v1/models", headers={"host": "evil.example"})).status_code == 403


async def test_programs_reach_it_by_any_address_and_by_the_names_of_this_machine_and_of_the_user() -> None:
    async with open_house(anonymous=True, hosts=("gateway.lan",)) as house:
        port = house.url.rpartition(":")[2]
        for host in (
            f"127.0.0.1:{port}",
            "localhost:1",
            "LOCALHOST",
            "[::1]:80",
            "10.1.2.3",
            socket.gethostname(),
            "gateway.lan:8000",
        ):
            assert (await post(house, **JSON, host=host)).status_code == 200, host
        own = f"127.0.0.1:{port}"
        for origin in (f"http://{own}", "https://gateway.lan", "http://gateway.lan:3000"):
            assert (await post(house, **JSON, host=own, origin=origin)).status_code == 200, origin
        assert (await post(house, content_type="Application/JSON; charset=utf-8")).status_code == 200


async def test_a_rollout_s_token_needs_no_name_and_no_content_type() -> None:
    async with open_house(anonymous=True) as house:
        bearer = f"Bearer {await house.rollout()}"
        for headers in (
            {"host": "gateway"},
            {"origin": "https://app.example"},
            {"content-type": "text/plain"},
        ):
            assert (await post(house, authorization=bearer, **headers)).status_code == 200


async def test_a_stranger_can_neither_end_nor_replace_the_call_of_another() -> None:
    added: list[Call] = []

    class Noting(MemoryStore):
        async def add_call(self, call: Call, *, running: bool = False) -> None:
            added.append(call)

    engine = ScriptedEngine(pause_after=0)
    async with open_house(engine, store=Noting(), anonymous=True) as house:
        asked = [asyncio.create_task(post(house, **JSON, x_lightning_call="mine")) for _ in range(2)]
        await until(lambda: engine.paused == 2)
        engine.resume.set()
        replies: list[Any] = await asyncio.gather(*asked)
        assert [reply.status_code for reply in replies] == [200, 200]
        assert len({call.id for call in added} - {"mine"}) == 2
        assert [call.status for call in added] == ["completed"] * 2
