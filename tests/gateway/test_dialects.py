"""The recording laws, held by every dialect, over plain HTTP."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from lightning_core.errors import StoreError
from lightning_core.records.types import Call, Sampling
from lightning_core.stores.sqlite import MemoryStore
from tests.gateway.conftest import House, open_house
from tests.gateway.scripted import END, ScriptedEngine, logprob, until

SAID = "one two three four"


@dataclass(frozen=True)
class Speaker:
    """How a dialect says a user's words, and reads the answer's."""

    path: str
    body: Callable[[str], dict[str, Any]]
    text: Callable[[dict[str, Any]], str]
    error: Callable[[dict[str, Any]], str]


def messages(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


SPEAKERS = {
    "chat": Speaker(
        "/v1/chat/completions",
        lambda text: {"model": "m", "messages": messages(text)},
        lambda reply: str(reply["choices"][0]["message"]["content"]),
        lambda reply: str(reply["error"]["code"]),
    ),
    "anthropic": Speaker(
        "/v1/messages",
        lambda text: {"model": "m", "messages": messages(text), "max_tokens": 100},
        lambda reply: str(reply["content"][0]["text"]),
        lambda reply: str(reply["error"]["type"]),
    ),
    "completions": Speaker(
        "/v1/completions",
        lambda text: {"model": "m", "prompt": text},
        lambda reply: str(reply["choices"][0]["text"]),
        lambda reply: str(reply["error"]["code"]),
    ),
    "responses": Speaker(
        "/v1/responses",
        lambda text: {"model": "m", "input": text},
        lambda reply: str(reply["output"][0]["content"][0]["text"]),
        lambda reply: str(reply["error"]["code"]),
    ),
}


class FullStore(MemoryStore):
    """A store whose disk is full."""

    async def add_call(self, call: Call, *, running: bool = False) -> None:
        raise StoreError("no space left")


@pytest.fixture(params=list(SPEAKERS))
def dialect(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def ask(
    house: House, dialect: str, token: str, *, base: str = "", call: str | None = None, **fields: Any
) -> httpx.Response:
    """Say SAID, and read the answer to its end."""
    speaker = SPEAKERS[dialect]
    headers = {"authorization": f"Bearer {token}", **({"x-lightning-call": call} if call else {})}
    async with httpx.AsyncClient(base_url=house.url, timeout=60) as web:
        return await web.post(base + speaker.path, json={**speaker.body(SAID), **fields}, headers=headers)


async def test_a_call_is_recorded_with_its_dialect_and_exact_ids(house: House, dialect: str) -> None:
    token = await house.rollout()
    reply = await ask(house, dialect, token, base="/rollouts/r1/agents/writer", call="c1")
    assert reply.status_code == 200
    assert reply.headers["x-request-id"] == "c1"
    assert reply.headers["x-lightning-policy-version"] == "7"
    assert SPEAKERS[dialect].text(reply.json()) == SAID
    call = await house.one_call()
    said = [*house.engine.encode(SAID), END]
    assert (call.id, call.dialect, call.agent, call.status) == ("c1", dialect, "writer", "completed")
    assert (call.model, call.policy_version, call.trained) == ("m", 7, True)
    assert call.prompt_ids == house.engine.encode(SAID)
    assert call.choices[0].completion_ids == said
    assert call.choices[0].logprobs == [logprob(token) for token in said]
    assert call.choices[0].message == {"role": "assistant", "content": SAID}
    assert Call.model_validate(call.model_dump()) == call


async def test_a_stream_is_recorded_like_a_whole_reply(house: House, dialect: str) -> None:
    token = await house.rollout()
    await ask(house, dialect, token)
    stream = await ask(house, dialect, token, stream=True)
    assert stream.headers["content-type"].startswith("text/event-stream")
    whole, streamed = await house.calls()
    assert streamed.choices == whole.choices
    assert streamed.prompt_ids == whole.prompt_ids


async def test_only_trained_agents_sample_as_the_rollout_says(dialect: str) -> None:
    async with open_house(agents=("write*",)) as house:
        token = await house.rollout(sampling=Sampling(temperature=0.0, top_p=0.5))
        for agent in ("writer", "judge"):
            base = f"/rollouts/r1/agents/{agent}"
            await ask(house, dialect, token, base=base, temperature=0.7, top_p=0.9)
        asked = [(request.temperature, request.top_p) for request in house.engine.requests]
        assert asked == [(0.0, 0.5), (0.7, 0.9)]
        assert [(call.trained, call.temperature) for call in await house.calls()] == [
            (True, 0.0),
            (False, 0.7),
        ]


async def test_the_first_token_leaves_before_the_last_is_made(dialect: str) -> None:
    speaker = SPEAKERS[dialect]
    async with (
        open_house(ScriptedEngine(pause_after=2)) as house,
        httpx.AsyncClient(base_url=house.url, timeout=60) as web,
    ):
        headers = {"authorization": f"Bearer {await house.rollout()}"}
        body = {**speaker.body(SAID), "stream": True}
        async with web.stream("POST", speaker.path, json=body, headers=headers) as reply:
            said = ""
            async for text in reply.aiter_text():
                said += text
                if "two" in said and not house.engine.resume.is_set():
                    assert "three" not in said
                    assert await house.calls() == []
                    house.engine.resume.set()
        assert "four" in said
        assert (await house.one_call()).status == "completed"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_frees_the_engine_and_is_recorded_as_cancelled(
    dialect: str, stream: bool
) -> None:
    async with open_house(ScriptedEngine(pause_after=2)) as house:
        asked = asyncio.create_task(ask(house, dialect, await house.rollout(), stream=stream))
        await until(lambda: house.engine.paused)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        call = await house.one_call()
        assert (call.status, call.dialect) == ("cancelled", dialect)
        assert call.choices[0].completion_ids == house.engine.encode("one two")
        await until(lambda: house.engine.closed == 1)


async def test_identical_prompts_are_as_many_calls_as_were_answered(house: House, dialect: str) -> None:
    token = await house.rollout()
    for call in ("a", "a", "b", None):
        await ask(house, dialect, token, call=call)
    ids = [call.id for call in await house.calls()]
    assert len(set(ids)) == 4
    assert {"a", "b"} < {*ids}


async def test_a_retry_takes_the_place_of_a_try_that_still_runs(dialect: str) -> None:
    engine = ScriptedEngine(pause_after=2)
    async with open_house(engine) as house:
        token = await house.rollout()
        first = asyncio.create_task(ask(house, dialect, token, call="same"))
        await until(lambda: engine.opened == 1)
        second = asyncio.create_task(ask(house, dialect, token, call="same"))
        assert (await first).status_code == 409
        engine.resume.set()
        assert (await second).status_code == 200
        assert (await house.one_call()).status == "completed"


async def test_an_engine_failure_is_an_error_and_a_failed_call(dialect: str) -> None:
    async with open_house(ScriptedEngine(fails_after=2, delay=0.01)) as house:
        token = await house.rollout()
        whole = await ask(house, dialect, token)
        assert whole.status_code == 500
        assert SPEAKERS[dialect].error(whole.json()) in ("engine_failed", "api_error")
        streamed = await ask(house, dialect, token, stream=True)
        assert streamed.status_code == 200
        assert "out of memory" in streamed.text.splitlines()[-2]
        assert [call.status for call in await house.calls()] == ["failed", "failed"]


async def test_a_reply_that_can_not_be_recorded_is_withheld(dialect: str) -> None:
    async with open_house(store=FullStore()) as house:
        token = await house.rollout()
        whole = await ask(house, dialect, token)
        assert whole.status_code == 503
        assert SAID not in whole.text
        assert "no space left" in (await ask(house, dialect, token, stream=True)).text.splitlines()[-2]


async def test_a_prompt_longer_than_the_context_is_the_apps_error_and_is_recorded(dialect: str) -> None:
    async with open_house(ScriptedEngine(context=2)) as house:
        token = await house.rollout()
        for stream in (False, True):
            reply = await ask(house, dialect, token, stream=stream)
            assert reply.status_code == 400
            openai = "This model's maximum context length is 2 tokens. However, your messages resulted in 4"
            anthropic = "prompt is too long: 4 tokens > 2 maximum"
            assert reply.json()["error"]["message"].startswith(
                anthropic if dialect == "anthropic" else openai
            )
            assert reply.json()["error"].get("code", "none") in ("context_length_exceeded", "none")
            if param := reply.json()["error"].get("param"):
                assert param in SPEAKERS[dialect].body(SAID)
        assert [call.status for call in await house.calls()] == ["refused", "refused"]


async def test_a_request_is_held_while_weights_change_and_answered_by_the_new_ones(
    house: House, dialect: str
) -> None:
    house.engine.held = threading.Event()
    asked = asyncio.create_task(ask(house, dialect, await house.rollout()))
    await until(lambda: house.engine.requests)
    house.engine.policy_version = 8
    house.engine.held.set()
    await asked
    assert (await house.one_call()).policy_version == 8


async def test_one_rollout_can_not_call_as_another(house: House, dialect: str) -> None:
    token = await house.rollout()
    await house.rollout("r2")
    assert (await ask(house, dialect, token, base="/rollouts/r2/agents/a")).status_code == 403
    assert (await ask(house, dialect, "lt-forged.token")).status_code == 401
    assert not house.engine.requests


async def test_what_is_no_json_object_or_unknown_is_refused_by_name(house: House, dialect: str) -> None:
    token = await house.rollout()
    reply = await ask(house, dialect, token, unheard_of="x")
    assert reply.status_code == 400
    assert "'unheard_of' is not a parameter of this endpoint" in reply.text
    call = await house.one_call()
    assert (call.status, call.dialect, call.choices) == ("refused", dialect, [])
    assert call.error in reply.text
    assert call.request["unheard_of"] == "x"
