"""Addresses, keys and bodies as clients of other servers send them."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable

import httpx
import openai
import orjson
import pytest
import zstandard

from lightning_core.gateway.addresses import own_path
from lightning_core.gateway.limits import Limits
from tests.gateway.conftest import House, open_house

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "hi there"}]}


@pytest.mark.parametrize(
    ("path", "own"),
    [
        ("/v1/chat/completions/", CHAT),
        ("/v1/models/", "/v1/models"),
        ("/", "/"),
        ("/openai/deployments/gpt-4o/chat/completions", CHAT),
        ("/openai/v1/responses", "/v1/responses"),
        ("/openai/responses", "/v1/responses"),
        ("/rollouts/r1/agents/a/openai/deployments/x/completions/", "/rollouts/r1/agents/a/v1/completions"),
        ("/rollouts/r1/agents/openai/v1/models", "/rollouts/r1/agents/v1/models"),
        ("/openai/deployments/x/else", "/openai/deployments/x/else"),
    ],
)
def test_a_path_is_read_as_the_gateways_own(path: str, own: str) -> None:
    assert own_path(path) == own


async def test_a_slash_at_the_end_changes_nothing(house: House, web: httpx.AsyncClient) -> None:
    headers = {"authorization": f"Bearer {await house.rollout()}"}
    for path in (CHAT, "/rollouts/r1/agents/a/v1/chat/completions"):
        assert (await web.post(f"{path}/", json=BODY, headers=headers)).status_code == 200
    assert (await web.get("/v1/models/", headers=headers)).status_code == 200


async def test_azures_client_is_answered(house: House) -> None:
    token = await house.rollout()
    async with openai.AsyncAzureOpenAI(
        azure_endpoint=house.url, api_key=token, api_version="2025-01-01", max_retries=0
    ) as client:
        reply = await client.chat.completions.create(model="gpt-4o", **BODY)  # type: ignore[call-overload]
        assert reply.choices[0].message.content == "hi there"
        response = await client.responses.create(model="gpt-4o", input="hi there")
        assert response.output_text == "hi there"
    first, second = await house.calls()
    assert (first.trained, first.model, second.dialect) == (True, "gpt-4o", "responses")


async def test_a_key_in_azures_header_opens_what_it_opens_elsewhere(
    house: House, web: httpx.AsyncClient
) -> None:
    token = await house.rollout()
    for headers in ({"api-key": token}, {"api-key": token, "authorization": "Bearer sk-hosted"}):
        assert (await web.get("/v1/models", headers=headers)).status_code == 200
    assert (await web.get("/v1/models", headers={"api-key": "hosted"})).status_code == 401


async def test_options_and_health_are_answered(house: House, web: httpx.AsyncClient) -> None:
    reply = await web.options(CHAT)
    assert (reply.status_code, reply.headers["allow"]) == (204, "GET, POST, OPTIONS")
    health = (await web.get("/healthz")).json()
    assert health == (await web.get("/health")).json()
    token = await house.rollout()
    body = {"model": "policy", "messages": [{"role": "user", "content": "hi"}]}
    answer = await web.post(CHAT, json=body, headers={"authorization": f"Bearer {token}"})
    assert answer.status_code == 200
    assert (await web.get("/healthz")).json() == {**health, "begun": health["begun"] + 1}


PACK: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "zstd": zstandard.ZstdCompressor().compress,
}


@pytest.mark.parametrize("encoding", PACK)
async def test_a_compressed_body_is_read(encoding: str) -> None:
    async with open_house(anonymous=True) as house:
        reply = await send(house, PACK[encoding](orjson.dumps(BODY)), encoding)
        assert reply.json()["choices"][0]["message"]["content"] == "hi there"


@pytest.mark.parametrize("encoding", PACK)
async def test_the_limit_of_a_body_holds_once_it_is_unpacked(encoding: str) -> None:
    async with open_house(anonymous=True, limits=Limits(body_bytes=10_000)) as house:
        exact = orjson.dumps(BODY).ljust(10_000)
        assert (await send(house, PACK[encoding](exact), encoding)).status_code == 200
        bomb = await send(house, PACK[encoding](bytes(5_000_000)), encoding)
        assert (bomb.status_code, bomb.json()["error"]["code"]) == (413, "too_large")
        assert "10000 bytes once it is unpacked" in bomb.json()["error"]["message"]


@pytest.mark.parametrize("encoding", PACK)
async def test_a_broken_body_is_refused_by_name(encoding: str) -> None:
    async with open_house(anonymous=True) as house:
        packed = PACK[encoding](orjson.dumps(BODY))
        for body in (b"no such thing", packed[:-5]):
            reply = await send(house, body, encoding)
            assert (reply.status_code, reply.json()["error"]["code"]) == (400, "malformed_body")


async def test_an_unknown_encoding_is_refused_by_name() -> None:
    async with open_house(anonymous=True) as house:
        for encoding in ("br", "gzip, zstd"):
            reply = await send(house, orjson.dumps(BODY), encoding)
            assert reply.status_code == 415
            assert f"{encoding!r} is not supported" in reply.json()["error"]["message"]


async def send(house: House, body: bytes, encoding: str) -> httpx.Response:
    headers = {"content-encoding": encoding, "content-type": "application/json"}
    async with httpx.AsyncClient(base_url=house.url, timeout=60) as web:
        return await web.post(CHAT, content=body, headers=headers)
