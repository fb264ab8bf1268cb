"""Calls after the end of their attempt: withheld, kept as a record, and never trained on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionChunk

from lightning_core.experience.transitions import to_trajectory
from lightning_core.records.types import Attempt, Rollout
from tests.gateway.conftest import House, drain, open_house
from tests.gateway.scripted import ScriptedEngine, until

CHAT = "/v1/chat/completions"


@pytest.fixture
async def house(store: Any) -> AsyncIterator[House]:
    async with open_house(ScriptedEngine(pause_after=2), store=store) as house:
        house.engine.resume.set()
        yield house


def body(text: str, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **fields}


async def finish(house: House, reward: float = 1.0, attempt: int = 1) -> Rollout:
    (rollout,) = await house.store.get_rollouts(["r1"])
    held = Attempt(rollout=rollout, number=attempt, worker="worker", lease_until=0.0)
    return await house.store.finish(held, reward=reward)


async def trained_on(house: House, rollout: Rollout) -> list[list[int]]:
    found = to_trajectory(rollout, await house.calls(), (await house.store.get_rewards(["r1"]))["r1"])
    return [list(transition.prompt_ids) for transition in found.transitions]


async def test_what_comes_after_the_end_is_withheld_and_is_in_no_trajectory(house: House) -> None:
    async with httpx.AsyncClient(base_url=house.url, timeout=60) as web:
        headers = {"authorization": f"Bearer {await house.rollout()}"}
        named = {**headers, "x-lightning-call": "same"}
        assert (await web.post(CHAT, json=body("in time"), headers=named)).status_code == 200
        ended = await finish(house)
        sampled = house.engine.opened
        for late in (named, headers, {**headers, "x-lightning-call": "new"}):
            answer = await web.post(CHAT, json=body("too late"), headers=late)
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (410, "attempt_ended")
            assert "attempt 1 of rollout 'r1' has ended" in error["message"]
        assert house.engine.opened == sampled + 1, "once known to have ended, nothing is sampled for it"
    assert await trained_on(house, ended) == [house.engine.encode("in time")]
    (real, late_one) = sorted(await house.calls(), key=lambda call: call.started_at)
    assert (real.id, real.status) == ("same", "completed")
    assert (late_one.id != "same", late_one.status) == (True, "cancelled")
    assert "has ended" in str(late_one.error)


async def test_a_reply_under_way_when_its_attempt_ends_is_withheld(house: House) -> None:
    house.engine.resume.clear()
    async with httpx.AsyncClient(base_url=house.url, timeout=60) as web:
        headers = {"authorization": f"Bearer {await house.rollout()}"}
        asked = asyncio.create_task(web.post(CHAT, json=body("one two three"), headers=headers))
        await until(lambda: house.engine.paused)
        ended = await finish(house)
        house.engine.resume.set()
        assert (await asked).json()["error"]["code"] == "attempt_ended"
    assert await trained_on(house, ended) == []


async def test_a_stream_under_way_when_its_attempt_ends_ends_in_an_error(house: House) -> None:
    house.engine.resume.clear()
    client = house.client(await house.rollout())
    messages: list[Any] = [{"role": "user", "content": "one two three"}]
    stream = await client.chat.completions.create(model="m", messages=messages, stream=True)
    await until(lambda: house.engine.paused)
    ended = await finish(house)
    house.engine.resume.set()
    chunks: list[ChatCompletionChunk] = []
    with pytest.raises(openai.APIError, match="has ended"):
        await drain(stream, chunks)
    assert {chunk.choices[0].finish_reason for chunk in chunks} == {None}
    assert await trained_on(house, ended) == []


async def test_an_older_attempt_s_token_adds_nothing_to_the_one_that_runs(house: House) -> None:
    stale = await house.rollout()
    (rollout,) = await house.store.get_rollouts(["r1"])
    await house.store.release([Attempt(rollout=rollout, number=1, worker="worker", lease_until=0.0)])
    (again,) = await house.store.lease("worker", 1, 60.0)
    async with httpx.AsyncClient(base_url=house.url, timeout=60) as web:
        fresh = house.tokens.issue(again.rollout, again.number)
        for token, status in ((stale, 410), (fresh, 200)):
            headers = {"authorization": f"Bearer {token}", "x-lightning-call": "same"}
            assert (await web.post(CHAT, json=body(f"{status}"), headers=headers)).status_code == status
    ended = await finish(house, attempt=2)
    assert await trained_on(house, ended) == [house.engine.encode("200")]


async def test_two_replies_under_one_call_id_are_two_calls(house: House) -> None:
    async with httpx.AsyncClient(base_url=house.url, timeout=60) as web:
        headers = {"authorization": f"Bearer {await house.rollout()}", "x-lightning-call": "same"}
        replies = [await web.post(CHAT, json=body(text), headers=headers) for text in ("first", "second")]
    assert {reply.json()["id"] for reply in replies} == {"chatcmpl-same"}
    calls = await house.calls()
    assert [(call.status, call.response_id) for call in calls] == [("completed", "chatcmpl-same")] * 2
    assert len({call.id for call in calls}) == 2
    ended = await finish(house)
    assert await trained_on(house, ended) == [house.engine.encode(text) for text in ("first", "second")]
