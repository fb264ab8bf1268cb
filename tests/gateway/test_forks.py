"""A rollout that forks gets the replies on record up to one call, or is refused with the first difference."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import openai
import pytest

from lightning_core.gateway.forks import WRITTEN, describe_difference
from lightning_core.gateway.tokens import Tokens
from lightning_core.records.linking import answering
from lightning_core.records.types import TRIED, Call, Fork, Rollout, Run, Sampling, Task
from tests.gateway.conftest import House, open_house
from tests.gateway.scripted import Line, ScriptedEngine

LOOK = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {}}},
}


@pytest.fixture
async def house() -> AsyncIterator[House]:
    """Its engine says how often it was asked."""
    engine = ScriptedEngine()
    engine.says = lambda request, choice: Line(f"reply {len(engine.requests)}.{choice}")
    async with open_house(engine) as opened:
        yield opened


async def fork(house: House, call: Call, name: str = "r2", **edit: Any) -> str:
    """Start a rollout that forks at a call; its token."""
    assert call.rollout_id is not None
    made = Fork(rollout_id=call.rollout_id, call_id=call.id, **edit)
    return await house.rollout(name, Sampling(fork=made))


async def ask(client: openai.AsyncOpenAI, *words: str, **options: Any) -> str:
    reply = await client.chat.completions.create(
        model="policy", messages=[{"role": "user", "content": each} for each in words], **options
    )
    return "|".join(choice.message.content or "" for choice in reply.choices)


async def chat(client: openai.AsyncOpenAI, *words: str) -> str:
    """An app that asks word by word, each time with all that was said."""
    said: list[str] = []
    for word in words:
        said.append(word)
        said.append(await ask(client, *said))
    return said[-1]


async def test_calls_before_the_fork_get_the_recorded_replies_and_later_ones_are_sampled(
    house: House,
) -> None:
    assert await chat(house.client(await house.rollout()), "a", "b", "c") == "reply 3.0"
    recorded = await house.calls()
    token = await fork(house, recorded[1])
    assert await chat(house.client(token), "a", "b", "c") == "reply 5.0"
    first, second, third = await house.calls("r2")
    assert (first.request, first.choices) == (recorded[0].request, recorded[0].choices)
    assert (first.id, first.response_id) == (recorded[0].id, recorded[0].response_id)
    assert (second.id, second.request) == (recorded[1].id, recorded[1].request)
    assert [one.message["content"] for one in second.choices] == ["reply 4.0"]
    assert third.request["messages"][3]["content"] == "reply 4.0"
    assert [each.trained for each in (first, second, third)] == [False, True, True]
    assert len(house.engine.requests) == 5


async def test_a_reply_that_a_person_wrote_is_given_and_never_recorded_as_sampled(house: House) -> None:
    await chat(house.client(await house.rollout()), "a", "b", "c")
    recorded = await house.calls()
    token = await fork(house, recorded[1], reply={"role": "assistant", "content": "mine"})
    assert await chat(house.client(token), "a", "b", "c") == "reply 4.0"
    first, second, third = await house.calls("r2")
    assert (first.request, first.choices) == (recorded[0].request, recorded[0].choices)
    assert (second.id, second.request) == (recorded[1].id, recorded[1].request)
    (choice,) = second.choices
    assert choice.message == {"role": "assistant", "content": "mine"}
    assert (choice.completion_ids, choice.logprobs, second.policy_version) == (None, None, None)
    assert (second.trained, choice.left_out) == (False, WRITTEN)
    assert third.request["messages"][3]["content"] == "mine"
    assert (third.trained, len(house.engine.requests)) == (True, 4)


async def test_a_tool_call_that_a_person_wrote_comes_in_each_api_and_in_a_stream(house: House) -> None:
    call = {"type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
    reply = {"role": "assistant", "content": None, "tool_calls": [call]}
    flat = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}

    async def chatted(token: str) -> Any:
        stream = await house.client(token).chat.completions.create(
            model="policy", messages=[{"role": "user", "content": "a"}], tools=[LOOK], stream=True
        )
        return [piece async for piece in stream]

    async def responded(token: str) -> Any:
        given = {"model": "policy", "input": "a", "tools": [flat]}
        return (await house.client(token).responses.create(**given)).output

    async def messaged(token: str) -> Any:
        tool = {"name": "look", "input_schema": {"type": "object", "properties": {}}}
        async with anthropic.AsyncAnthropic(base_url=house.url, api_key=token, max_retries=0) as client:
            return await client.messages.create(
                model="policy", max_tokens=9, messages=[{"role": "user", "content": "a"}], tools=[tool]
            )

    async def edited(app: Any, name: str) -> Any:
        await app(await house.rollout(name))
        (target,) = await house.calls(name)
        return await app(await fork(house, target, f"{name}-fork", reply=reply))

    pieces = [piece.choices[0] for piece in await edited(chatted, "chat")]
    asked = [call for piece in pieces for call in piece.delta.tool_calls or ()]
    assert (asked[0].function.name, asked[0].id.startswith("call_")) == ("look", True)
    assert "".join(each.function.arguments or "" for each in asked) == '{"at": 1}'
    assert pieces[-1].finish_reason == "tool_calls"
    (item,) = await edited(responded, "responses")
    assert (item.type, item.name, item.arguments) == ("function_call", "look", '{"at": 1}')
    message = await edited(messaged, "messages")
    assert (message.content[0].name, message.content[0].input) == ("look", {"at": 1})
    assert message.stop_reason == "tool_use"
    assert len(house.engine.requests) == 3


async def test_a_prompt_that_a_person_wrote_is_what_the_engine_gets(house: House) -> None:
    await chat(house.client(await house.rollout()), "a", "b", "c")
    recorded = await house.calls()
    edited = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "B"}]
    token = await fork(house, recorded[1], prompt={"messages": edited})
    assert await chat(house.client(token), "a", "b", "c") == "reply 5.0"
    first, second, third = await house.calls("r2")
    assert first.choices == recorded[0].choices
    assert house.engine.requests[3].messages == edited
    assert (second.id, second.request) == (recorded[1].id, {**recorded[1].request, "messages": edited})
    assert (second.choices[0].message["content"], second.trained) == ("reply 4.0", True)
    assert [each["content"] for each in third.request["messages"]] == [
        "a",
        "reply 1.0",
        "b",
        "reply 4.0",
        "c",
    ]


async def test_system_prompts_that_stand_apart_are_edited_too(house: House) -> None:
    async def app(token: str) -> None:
        async with anthropic.AsyncAnthropic(base_url=house.url, api_key=token, max_retries=0) as client:
            await client.messages.create(
                model="policy", max_tokens=9, system="old", messages=[{"role": "user", "content": "a"}]
            )

    await app(await house.rollout())
    (target,) = await house.calls()
    await app(await fork(house, target, prompt={"system": "new"}))
    assert [each["content"] for each in house.engine.requests[1].messages] == ["new", "a"]


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ({"role": "user", "content": "a"}, "only an assistant replies"),
        ({"role": "assistant"}, "says nothing"),
        ({"role": "assistant", "tool_calls": [{"name": "look"}]}, r"tool_calls\[0\] is"),
    ],
)
async def test_a_reply_that_is_none_is_refused(house: House, reply: Any, said: str) -> None:
    await ask(house.client(await house.rollout()), "a")
    token = await fork(house, (await house.calls())[0], reply=reply)
    with pytest.raises(openai.BadRequestError, match=said):
        await ask(house.client(token), "a")


async def test_ids_of_replies_and_tool_calls_are_those_on_record(house: House) -> None:
    asked = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    house.engine.says = lambda request, choice: Line(tool_calls=[asked], thought="hm")

    async def app(token: str) -> Any:
        return await house.client(token).chat.completions.create(
            model="policy", messages=[{"role": "user", "content": "a"}], tools=[LOOK]
        )

    was, rollout = await app(await house.rollout()), "r1"
    await ask(house.client(house.tokens.issue(await one(house, rollout), 1)), "last")
    token = await fork(house, (await house.calls())[1])
    house.engine.says = lambda request, choice: Line("not this")
    now = await app(token)
    assert now.model_dump(exclude={"created"}) == was.model_dump(exclude={"created"})


async def one(house: House, name: str) -> Rollout:
    return (await house.store.get_rollouts([name]))[0]


async def test_streams_and_several_choices_get_the_recorded_replies(house: House) -> None:
    async def app(token: str) -> tuple[str, str, str]:
        client = house.client(token)
        stream = await client.chat.completions.create(
            model="policy", messages=[{"role": "user", "content": "a"}], stream=True
        )
        pieces = [piece.choices[0].delta.content or "" async for piece in stream]
        return "".join(pieces), await ask(client, "b", n=2), await ask(client, "c")

    was = await app(await house.rollout())
    now = await app(await fork(house, (await house.calls())[2]))
    assert was == ("reply 1.0", "reply 2.0|reply 2.1", "reply 3.0")
    assert now == ("reply 1.0", "reply 2.0|reply 2.1", "reply 4.0")


async def test_a_conversation_of_responses_goes_on_from_the_recorded_ids(house: House) -> None:
    async def app(token: str) -> list[str]:
        client = house.client(token)
        first = await client.responses.create(model="policy", input="a")
        second = await client.responses.create(model="policy", input="b", previous_response_id=first.id)
        third = await client.responses.create(model="policy", input="c", previous_response_id=second.id)
        return [each.output_text for each in (first, second, third)]

    await app(await house.rollout())
    assert await app(await fork(house, (await house.calls())[1])) == ["reply 1.0", "reply 4.0", "reply 5.0"]


async def test_messages_and_completions_get_the_recorded_replies(house: House) -> None:
    async def app(token: str) -> list[str]:
        completed = await house.client(token).completions.create(model="policy", prompt=["a", "b"])
        async with anthropic.AsyncAnthropic(base_url=house.url, api_key=token, max_retries=0) as client:
            messages = [
                await client.messages.create(
                    model="policy", max_tokens=9, messages=[{"role": "user", "content": word}]
                )
                for word in ("c", "d")
            ]
        return [each.text for each in completed.choices] + [each.content[0].text for each in messages]  # type: ignore[union-attr]

    was = await app(await house.rollout())
    last = max(await house.calls(), key=lambda call: call.started_at)
    assert (await app(await fork(house, last)))[:3] == was[:3]
    assert len(house.engine.requests) == 5


async def test_a_request_that_differs_is_refused_with_the_call_and_the_difference(house: House) -> None:
    await chat(house.client(await house.rollout(), agent="writer"), "a", "at 18:53", "c")
    recorded = await house.calls()
    client = house.client(await fork(house, recorded[2]), agent="writer")
    with pytest.raises(openai.UnprocessableEntityError) as refused:
        await chat(client, "a", "at 18:54", "c")
    said = str(refused.value)
    assert f"call 2 of the record ({recorded[1].id}, agent 'writer')" in said
    assert "messages[2].content differs from character 8 on: recorded 'at 18:53', now 'at 18:54'" in said
    with pytest.raises(openai.UnprocessableEntityError, match="18:54"):
        await ask(client, "a")  # which equals the first, but comes after the difference
    assert [call.status for call in await house.calls("r2")] == ["completed", "refused", "refused"]
    assert len(house.engine.requests) == 3


async def test_ids_of_tool_calls_that_a_framework_draws_make_no_difference(house: House) -> None:
    async def app(token: str, drawn: str, result: str = "found") -> str:
        asked = {"id": drawn, "type": "function", "function": {"name": "look", "arguments": "{}"}}
        reply = await house.client(token).chat.completions.create(
            model="policy",
            messages=[
                {"role": "user", "content": "a"},
                {"role": "assistant", "tool_calls": [asked]},
                {"role": "tool", "tool_call_id": drawn, "content": result},
            ],
        )
        await ask(house.client(token), "last")
        return str(reply.choices[0].message.content)

    was = await app(await house.rollout(), "call_1")
    target = (await house.calls())[1]
    assert await app(await fork(house, target), "call_2") == was
    with pytest.raises(openai.UnprocessableEntityError, match="recorded 'found', now 'lost'"):
        await app(await fork(house, target, "r3"), "call_3", "lost")


async def test_a_call_of_another_agent_or_one_too_many_is_refused(house: House) -> None:
    token = await house.rollout()
    await ask(house.client(token, agent="writer"), "a")
    await ask(house.client(token, agent="writer"), "b")
    target = (await house.calls())[1]
    with pytest.raises(openai.UnprocessableEntityError, match="no other call on record is of that agent"):
        await ask(house.client(await fork(house, target), agent="critic"), "a")
    again = house.client(await fork(house, target, "r3"), agent="writer")
    await ask(again, "a")
    with pytest.raises(openai.UnprocessableEntityError, match="recorded 'b', now 'a'"):
        await ask(again, "a")


async def test_calls_beside_the_fork_get_their_replies_in_any_order(house: House) -> None:
    """Three at once, in the record and again: only the one of the fork is sampled."""

    async def app(token: str, order: str) -> dict[str, str]:
        client = house.client(token)
        said = await asyncio.gather(*(ask(client, word) for word in order))
        return {**dict(zip(order, said, strict=True)), "last": await ask(client, *sorted(said))}

    house.engine.delay = 0.05
    was = await app(await house.rollout(), "abc")
    target = next(call for call in await house.calls() if call.request["messages"][0]["content"] == "b")
    now = await app(await fork(house, target), "cab")
    assert (now["a"], now["c"]) == (was["a"], was["c"])
    assert {was["b"], now["b"], was["last"], now["last"]} >= {"reply 5.0", "reply 6.0"}


async def test_of_equal_requests_the_recorded_one_is_sampled(house: House) -> None:
    async def app(token: str) -> list[str]:
        client = house.client(token)
        return [await ask(client, "vote") for _ in range(3)]

    assert await app(await house.rollout()) == ["reply 1.0", "reply 2.0", "reply 3.0"]
    assert await app(await fork(house, (await house.calls())[1])) == ["reply 1.0", "reply 4.0", "reply 5.0"]


async def test_a_request_that_is_sent_again_gets_the_same_reply(house: House) -> None:
    await chat(house.client(await house.rollout()), "a", "b")
    client = house.client(await fork(house, (await house.calls())[1]))
    headers = {"x-lightning-call": "mine"}
    assert await ask(client, "a", extra_headers=headers) == "reply 1.0"
    assert await ask(client, "a", extra_headers=headers) == "reply 1.0"
    assert len(answering(await house.calls("r2"))) == 1


async def test_what_the_record_lacks_is_refused(house: House) -> None:
    token = await house.rollout()
    await ask(house.client(token), "a", logprobs=True, top_logprobs=1)
    await ask(house.client(token), "b")
    target = (await house.calls())[1]
    with pytest.raises(openai.UnprocessableEntityError, match="asks for top_logprobs"):
        await ask(house.client(await fork(house, target)), "a", logprobs=True, top_logprobs=1)
    unknown = target.model_copy(update={"id": "none"})
    with pytest.raises(openai.NotFoundError, match="has no completed call 'none'"):
        await ask(house.client(await fork(house, unknown, "r3")), "a")


async def test_a_call_without_a_reply_on_record_is_refused(house: House) -> None:
    client = house.client(await house.rollout())
    house.engine.fails_after = 0
    with pytest.raises(openai.InternalServerError):
        await ask(client, "a")
    house.engine.fails_after = None
    await ask(client, "b")
    again = house.client(await fork(house, (await house.calls())[1]))
    with pytest.raises(openai.UnprocessableEntityError, match="has no reply on record: it is failed"):
        await ask(again, "a")


async def test_a_prompt_that_the_engine_refused_is_refused_again(house: House) -> None:
    async def app(token: str) -> str:
        client = house.client(token)
        with pytest.raises(openai.BadRequestError, match="shorten it"):
            await ask(client, "word " * 50)
        return await ask(client, "b")

    house.engine.context = 20
    await app(await house.rollout())
    target = next(call for call in await house.calls() if call.status == "completed")
    before = len(house.engine.requests)
    assert await app(await fork(house, target)) == f"reply {before + 2}.0"


async def test_only_a_run_and_its_trials_may_fork_its_rollouts(house: House) -> None:
    await ask(house.client(await house.rollout()), "a")
    target = (await house.calls())[0]
    for name, config in (("stranger", {}), ("trial", {TRIED: "run"})):
        await house.store.put_run(Run(id=name, config=config))
        sampling = Sampling(fork=Fork(rollout_id="r1", call_id=target.id))
        made = Rollout(
            id=f"of-{name}", run_id=name, task=Task(input={}), group_id="g", step=0, sampling=sampling
        )
        await house.store.enqueue([made])
        await house.store.lease("worker", 1, 60.0)
        client = house.client(house.tokens.issue(made, 1))
        if name == "stranger":
            with pytest.raises(openai.PermissionDeniedError, match="which is of another run"):
                await ask(client, "a")
        else:
            assert await ask(client, "a") == "reply 2.0"


@pytest.mark.parametrize(
    ("recorded", "now", "said"),
    [
        ({"a": 1}, {"a": 2}, "a is 2, recorded is 1"),
        ({"a": 1}, {"a": 1.0}, "a is 1.0, recorded is 1"),
        ({"a": 1}, {}, "the body has no field 'a', recorded is 1"),
        ({}, {"a": [1]}, "the body has the field 'a' with [1], recorded is none"),
        ({"a": [1]}, {"a": [1, 2]}, "a has 2 items, recorded are 1"),
        (
            {"a": [{"b": "same old"}]},
            {"a": [{"b": "same new"}]},
            "a[0].b differs from character 6 on: recorded 'same old', now 'same new'",
        ),
        ({"a": "x"}, {"a": "xy"}, "a differs from character 2 on: recorded 'x', now 'xy'"),
        ({"a": "x"}, {"a": None}, 'a is null, recorded is "x"'),
    ],
)
def test_the_first_difference_is_described(recorded: Any, now: Any, said: str) -> None:
    assert describe_difference(recorded, now) == said


def test_a_token_carries_the_fork() -> None:
    """So a gateway on another machine knows it."""
    tokens = Tokens(b"0123456789abcdef")
    sampling = Sampling(fork=Fork(rollout_id="r1", call_id="c1"))
    rollout = Rollout(id="r2", run_id="r", task=Task(input={}), group_id="g", step=0, sampling=sampling)
    assert tokens.read(tokens.issue(rollout, 1)).sampling == sampling
