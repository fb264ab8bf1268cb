"""Tokens come together where the app reads the reply whole, and one by one where it does not."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

pytest.importorskip("aiohttp")

from lightning_core.backends.serving.upstream import TOGETHER
from lightning_core.backends.vllm.upstream import Replicas, VllmUpstream
from lightning_core.records.types import Call
from lightning_core.stores.base import Store
from tests.backends.serving import gateway
from tests.vllm.standin import TOKEN, StandIn
from tests.vllm.test_slow import Served

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
LONG = TOGETHER + 8
HI = [{"role": "user", "content": "hi"}]
ASKED: dict[str, Any] = {"model": "tiny", "messages": HI, "max_tokens": LONG}


@pytest.mark.parametrize(
    ("asked", "interval"),
    [
        ({}, TOGETHER),
        ({"tools": [TOOL]}, TOGETHER),
        ({"stream": True}, None),
        ({"stop": ["."]}, None),
        ({"tools": [TOOL], "parallel_tool_calls": False}, None),
    ],
    ids=["whole", "calls", "streamed", "stop text", "one call"],
)
async def test_tokens_come_together_where_the_reply_is_read_whole(
    asked: dict[str, Any], interval: int | None
) -> None:
    async with StandIn() as server:
        replicas = Replicas([server.url], "tiny")
        async with gateway(Served(VllmUpstream("tiny", replicas))) as (web, store):
            reply = await web.post("/v1/chat/completions", json=ASKED | asked)
            assert reply.status_code == 200, reply.text
            (call,) = await calls_of(store)
        await replicas.close()
    assert server.intervals == [interval]
    assert call.status == "completed"
    assert call.choices[0].completion_ids == [TOKEN] * LONG
    assert call.choices[0].logprobs == [-0.5] * LONG


async def test_what_came_of_a_reply_stays_when_its_app_leaves() -> None:
    async with StandIn() as server:
        server.go.clear()
        replicas = Replicas([server.url], "tiny")
        async with gateway(Served(VllmUpstream("tiny", replicas))) as (web, store):
            with pytest.raises(httpx.ReadTimeout):
                await web.post("/v1/chat/completions", json=ASKED, timeout=5.0)
            for _ in range(1000):
                if calls := await calls_of(store):
                    break
                await asyncio.sleep(0.01)
        await replicas.close()
    assert [call.status for call in calls] == ["cancelled"]
    assert calls[0].choices[0].completion_ids == [TOKEN] * (1 + TOGETHER)


async def calls_of(store: Store) -> list[Call]:
    return (await store.get_calls(["r1"])).get("r1", [])
