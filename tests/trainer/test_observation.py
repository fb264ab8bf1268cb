"""An agent's last observation, as a digest of requests that the gateway recorded, in every dialect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_core.dialects.transcript import observation
from lightning_core.experience.transitions import to_trajectory
from lightning_core.records.types import Call, Rollout, Status, Task
from tests.build import make_call
from tests.gateway.conftest import open_house

Body = dict[str, Any]
TURN = {"question": "where is it", "reply": "let me look", "tool_id": "call_1", "result": "on the left"}


def chat(question: str, reply: str, tool_id: str, result: str) -> Body:
    asked = {"id": tool_id, "type": "function", "function": {"name": "look", "arguments": "{}"}}
    return {
        "messages": [
            {"role": "system", "content": "be kind"},
            {"role": "user", "content": question},
            {"role": "assistant", "content": reply, "tool_calls": [asked]},
            {"role": "tool", "tool_call_id": tool_id, "content": result},
        ]
    }


def anthropic(question: str, reply: str, tool_id: str, result: str) -> Body:
    asked = {"type": "tool_use", "id": tool_id, "name": "look", "input": {}}
    answer = {"type": "tool_result", "tool_use_id": tool_id, "content": result}
    return {
        "max_tokens": 50,
        "system": "be kind",
        "messages": [
            {"role": "user", "content": question},
            {"role": "assistant", "content": [{"type": "text", "text": reply}, asked]},
            {"role": "user", "content": [answer]},
        ],
    }


def responses(question: str, reply: str, tool_id: str, result: str) -> Body:
    return {
        "instructions": "be kind",
        "input": [
            {"role": "user", "content": question},
            {"role": "assistant", "content": reply},
            {"type": "function_call", "call_id": tool_id, "name": "look", "arguments": "{}"},
            {"type": "function_call_output", "call_id": tool_id, "output": result},
        ],
    }


DIALECTS: dict[str, tuple[str, Callable[..., Body]]] = {
    "chat": ("/v1/chat/completions", chat),
    "anthropic": ("/v1/messages", anthropic),
    "responses": ("/v1/responses", responses),
}


async def shown(path: str, *bodies: Body) -> list[str]:
    """The observation of each request's transition, through the gateway and the store."""
    async with open_house() as house, httpx.AsyncClient(base_url=house.url, timeout=60) as web:
        headers = {"authorization": f"Bearer {await house.rollout()}"}
        for body in bodies:
            reply = await web.post(path, json={"model": "m", **body}, headers=headers)
            assert reply.status_code == 200, reply.text
        done = Rollout(
            id="r1",
            run_id="run",
            task=Task(input={}),
            group_id="g",
            step=0,
            status=Status.SUCCEEDED,
            reward=1.0,
        )
        return [t.observation for t in to_trajectory(done, await house.calls(), []).transitions]


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_an_observation_is_what_came_after_the_agent_s_own_last_words(dialect: str) -> None:
    path, body = DIALECTS[dialect]
    first, *others, other_result = await shown(
        path,
        body(**TURN),
        body(**{**TURN, "tool_id": "call_2"}),
        body(**{**TURN, "reply": "I look", "question": "where"}),
        body(**{**TURN, "result": "on the right"}),
    )
    assert first
    assert others == [first, first]
    assert other_result != first


def opening(dialect: str, system: str) -> Body:
    """A request before the first reply."""
    user = {"role": "user", "content": "where is it"}
    return {
        "chat": {"messages": [{"role": "system", "content": system}, user]},
        "anthropic": {"max_tokens": 50, "system": system, "messages": [user]},
        "responses": {"instructions": system, "input": [user]},
    }[dialect]


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_before_the_first_reply_all_was_shown(dialect: str) -> None:
    path, _ = DIALECTS[dialect]
    kind, again, cold = await shown(path, *(opening(dialect, said) for said in ("kind", "kind", "cold")))
    assert kind == again != cold


async def test_a_response_that_goes_on_by_id_was_shown_its_own_input() -> None:
    async with open_house() as house, httpx.AsyncClient(base_url=house.url, timeout=60) as web:
        headers = {"authorization": f"Bearer {await house.rollout()}"}
        asked = {"model": "m", "input": "where is it"}
        before = await web.post("/v1/responses", json=asked, headers=headers)
        going_on = {"model": "m", "input": "on the left", "previous_response_id": before.json()["id"]}
        assert (await web.post("/v1/responses", json=going_on, headers=headers)).status_code == 200
        first, second = await house.calls()
    alone = second.model_copy(update={"request": {"input": "on the left"}})
    assert observation(first) != observation(second) == observation(alone)


async def test_a_text_completion_was_shown_its_whole_prompt() -> None:
    first, again, other, ids = await shown(
        "/v1/completions", {"prompt": "a b"}, {"prompt": "a b"}, {"prompt": "a c"}, {"prompt": [1, 2]}
    )
    assert first == again
    assert len({first, other, ids}) == 3


WORDS = st.text("ab", min_size=1, max_size=3)


@given(st.lists(st.tuples(WORDS, WORDS), max_size=4), WORDS)
def test_what_lies_before_the_last_reply_does_not_matter(turns: list[tuple[str, str]], last: str) -> None:
    def call(messages: list[Body]) -> Call:
        return make_call(request={"messages": messages})

    said = [
        {"role": role, "content": content}
        for asked, answered in [*turns, ("q", "a")]
        for role, content in (("user", asked), ("assistant", answered))
    ]
    user = {"role": "user", "content": last}
    short = [{"role": "assistant", "content": "x"}, user]
    assert observation(call([*said, user])) == observation(call(short))
    assert observation(call([*said, user, user])) != observation(call(short))


def test_what_lies_before_the_last_reply_is_not_read() -> None:
    class Unread:
        def __repr__(self) -> str:
            raise AssertionError("it was read")

    last = [{"role": "assistant", "content": "x"}, {"role": "user", "content": "q"}]
    request: Any = {"messages": [Unread(), *last]}
    call = make_call(request={"messages": last})
    assert observation(call.model_copy(update={"request": request})) == observation(call)


def test_nothing_shown_is_no_observation() -> None:
    call = Call(
        id="c", rollout_id="r", attempt=1, agent="a", trained=True, request={}, started_at=0, ended_at=1
    )
    assert observation(call) == ""
