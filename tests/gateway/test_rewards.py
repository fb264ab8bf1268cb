"""Rewards over REST: stored before the answer, by the rollout's own token; a refusal says what to send."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

import lightning_core as lightning
from lightning_core.errors import StoreError
from lightning_core.experience.transitions import to_trajectory
from lightning_core.records.types import Attempt, Reward, Rollout, Task
from lightning_core.runner.runner import Runner
from lightning_core.stores.sqlite import MemoryStore, SqliteStore
from lightning_core.tracing.scope import Scope
from tests.gateway.conftest import House, open_house


async def post(web: httpx.AsyncClient, token: str, body: Any, rollout: str = "r1") -> httpx.Response:
    content = {"content": body} if isinstance(body, bytes) else {"json": body}
    headers = {"authorization": f"Bearer {token}"} if token else {}
    return await web.post(f"/rollouts/{rollout}/rewards", headers=headers, **content)


async def stored(house: House, name: str = "r1") -> list[Reward]:
    return (await house.store.get_rewards([name]))[name]


async def test_one_reward_or_a_list_is_stored_before_the_answer(house: House, web: httpx.AsyncClient) -> None:
    token = await house.rollout()
    one = await post(web, token, {"value": True, "reason": "right"})
    assert (one.status_code, one.json()) == (200, {"stored": 1})
    two = await post(web, token, [{"value": 0.5, "agent": "writer"}, {"value": -1, "call": "chatcmpl-1"}])
    assert two.json() == {"stored": 2}
    assert [(r.kind, r.value, r.agent, r.call_id, r.reason, r.attempt) for r in await stored(house)] == [
        ("final", 1.0, None, None, "right", 1),
        ("final", 0.5, "writer", None, None, 1),
        ("intermediate", -1.0, None, "chatcmpl-1", None, 1),
    ]


async def test_another_rollout_s_token_is_refused(house: House, web: httpx.AsyncClient) -> None:
    other = await house.rollout("r2")
    await house.rollout("r1")
    for token, status, code in (
        (other, 403, "other_rollout"),
        ("lt-forged.x", 401, "invalid_api_key"),
        ("", 401, "invalid_api_key"),
    ):
        answer = await post(web, token, {"value": 1.0})
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert await stored(house) == await stored(house, "r2") == []


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        (b"{", None, "can't be read as JSON"),
        (b'{"value": NaN}', None, "can't be read as JSON"),
        (5, None, 'the body is 5, not a reward; send {"value": 1.0}'),
        ([{"value": 1.0}, None], None, r"[1] is None, not a reward"),
        ({}, "value", "value is missing"),
        ({"value": "1.0"}, "value", "value must be a finite number from -1e9 to 1e9, not '1.0'"),
        ({"value": 1.7e308}, "value", "must be a finite number from -1e9 to 1e9, not 1.7e+308"),
        ({"value": None}, "value", "must be a finite number"),
        ([{"value": 1.0}, {"value": []}], "[1].value", "[1].value must be a finite number"),
        ({"value": 1.0, "agent": ""}, "agent", "agent must be a non-empty string"),
        ({"value": 1.0, "call": 7}, "call", "call must be a non-empty string, not 7"),
        ({"value": 1.0, "id": ""}, "id", "id must be a non-empty string"),
        ({"value": 1.0, "agent": "a", "call": "c"}, "agent", "are both given"),
        ({"value": 1.0, "agnet": "a"}, "agnet", "'agnet' is not a field of a reward"),
    ],
)
async def test_what_is_no_reward_is_refused_by_field_and_nothing_is_stored(
    house: House, web: httpx.AsyncClient, body: Any, param: str | None, words: str
) -> None:
    answer = await post(web, await house.rollout(), body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert words in error["message"]
    assert await stored(house) == []


async def test_a_rollout_that_has_ended_takes_no_more(house: House, web: httpx.AsyncClient) -> None:
    token = await house.rollout()
    [rollout] = await house.store.find_rollouts("run")
    await house.store.finish(Attempt(rollout=rollout, number=1, worker="worker", lease_until=0.0), reward=1.0)
    answer = await post(web, token, {"value": 0.0})
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "attempt_ended")
    assert [reward.value for reward in await stored(house)] == [1.0]


async def test_an_attempt_that_was_replaced_takes_no_more(house: House, web: httpx.AsyncClient) -> None:
    stale = await house.rollout()
    [rollout] = await house.store.find_rollouts("run")
    await house.store.release([Attempt(rollout=rollout, number=1, worker="worker", lease_until=0.0)])
    for _ in range(2):  # while it waits in the queue, and while the next attempt runs
        answer = await post(web, stale, {"value": 1.0})
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "attempt_ended")
        [again] = await house.store.lease("worker", 1, 60.0) or [None]
        if again is not None:
            fresh = house.tokens.issue(again.rollout, again.number)
    assert (await post(web, fresh, {"value": 0.5})).status_code == 200
    assert [reward.value for reward in await stored(house)] == [0.5]


async def test_a_reward_with_an_id_counts_once_however_often_it_is_sent(
    house: House, web: httpx.AsyncClient
) -> None:
    token = await house.rollout()
    body = [{"value": 0.5, "call": "chatcmpl-1", "id": "step 1"}, {"value": 1.0, "id": "end"}]
    for _ in range(2):
        answer = await post(web, token, body)
        assert (answer.status_code, answer.json()) == (200, {"stored": 2})
    assert [reward.value for reward in await stored(house)] == [0.5, 1.0]
    [rollout] = await house.store.find_rollouts("run")
    await house.store.finish(Attempt(rollout=rollout, number=1, worker="worker", lease_until=0.0))
    assert (await post(web, token, body)).status_code == 200  # it was stored, only the answer was lost
    assert (await post(web, token, {"value": 1.0, "id": "late"})).status_code == 409
    assert [reward.value for reward in await stored(house)] == [0.5, 1.0]


async def test_a_rollout_that_the_store_does_not_know_is_named(house: House, web: httpx.AsyncClient) -> None:
    lost = Rollout(id="lost", run_id="run", task=Task(input={}), group_id="g", step=0)
    answer = await post(web, house.tokens.issue(lost, 1), {"value": 1.0}, "lost")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "no_rollout")


async def test_an_id_that_no_store_takes_is_refused(house: House, web: httpx.AsyncClient) -> None:
    token = await house.rollout()
    answer = await post(web, token, {"value": 1.0, "id": "a\0b"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_value")
    headers = {"authorization": f"Bearer {token}", "x-lightning-call": "x" * 513}
    chat = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    refused = await web.post("/v1/chat/completions", json=chat, headers=headers)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "x-lightning-call")
    assert house.engine.opened == 0


class FullStore(MemoryStore):
    async def add_rewards(self, rewards: Any, *, running: bool = False) -> None:
        raise StoreError("the disk is full")


async def test_a_reward_that_can_not_be_stored_is_not_acknowledged() -> None:
    async with open_house(store=FullStore()) as house, httpx.AsyncClient(base_url=house.url) as web:
        answer = await post(web, await house.rollout(), {"value": 1.0})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_failed")
    assert "the disk is full" in answer.json()["error"]["message"]


async def test_an_unknown_address_names_this_one(house: House) -> None:
    async with httpx.AsyncClient(base_url=house.url) as web:
        answer = await web.post("/rollouts/r1/reward", json={})
    assert "/rollouts/{rollout_id}/rewards" in answer.json()["error"]["message"]


PYTHON = """
import json, os, urllib.request

direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def post(url, body):
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    return json.load(direct.open(urllib.request.Request(url, json.dumps(body).encode(), headers)))


chat = {"model": "any", "messages": [{"role": "user", "content": "ping"}]}
reply = post(os.environ["OPENAI_BASE_URL"] + "/chat/completions", chat)
rewards = [{"value": 0.25, "call": reply["id"]}, {"value": 0.75, "reason": "said ping"}]
post(os.environ["LIGHTNING_REWARD_URL"], rewards)
"""
NODE = """
const post = async (url, body) => {
  const headers = {Authorization: "Bearer " + process.env.OPENAI_API_KEY, "Content-Type": "application/json"}
  const answer = await fetch(url, {method: "POST", headers, body: JSON.stringify(body)})
  if (!answer.ok) throw new Error(await answer.text())
  return answer.json()
}
const chat = {model: "any", messages: [{role: "user", content: "ping"}]}
post(process.env.OPENAI_BASE_URL + "/chat/completions", chat).then(reply =>
  post(process.env.LIGHTNING_REWARD_URL, [{value: 0.25, call: reply.id}, {value: 0.75, reason: "said ping"}]))
"""


@pytest.mark.parametrize(
    "program", [(sys.executable, "-c", PYTHON), ("node", "-e", NODE)], ids=["python", "node"]
)
async def test_a_program_in_any_language_gives_the_final_reward_and_one_about_its_call(
    tmp_path: Path, program: tuple[str, ...]
) -> None:
    if shutil.which(program[0]) is None:
        pytest.skip(f"{program[0]} is not installed here")

    async def solve(task: Task) -> None:
        child = await asyncio.create_subprocess_exec(
            *program, env={**os.environ, **lightning.environment(agent="writer")}
        )
        assert await child.wait() == 0

    async with SqliteStore(f"sqlite:///{tmp_path}/runs.db") as store, open_house(store=store) as house:
        [done] = await run(house, solve)
        calls = await house.calls()
        rewards = await stored(house)
    assert done.reward == 0.75
    assert [(one.value, one.reason) for one in rewards if one.kind == "final"] == [(0.75, "said ping")]
    [transition] = to_trajectory(done, calls, rewards).transitions
    assert (transition.agent, transition.reward) == ("writer", 0.25)


async def run(house: House, solve: Any) -> list[Rollout]:
    """One rollout, by a real runner."""
    await house.store.enqueue([Rollout(id="r1", run_id="run", task=Task(input={}), group_id="g", step=0)])
    runner = Runner(
        solve,
        house.store,
        run_id="run",
        scope_for=lambda attempt: Scope(
            attempt.rollout.id, attempt.number, house.url, house.tokens.issue(attempt.rollout, attempt.number)
        ),
    )
    stop = asyncio.Event()
    serving = asyncio.create_task(runner.serve(stop))
    try:
        return await house.store.wait_finished(["r1"], timeout=30)
    finally:
        stop.set()
        await serving
