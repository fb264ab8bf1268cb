"""The Responses API through the gateway, as the OpenAI SDK reads it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import openai
import orjson
import pytest
from openai.types.responses import ResponseStreamEvent

from lightning_core.dialects.compaction import ASKS
from lightning_core.dialects.conversations import Conversations, Turn, messages_of
from lightning_core.dialects.responses import Responses
from lightning_core.dialects.upstream import ChatRequest
from lightning_core.errors import ApiError
from tests.gateway.conftest import House, drain, open_house
from tests.gateway.scripted import END, Line, ScriptedEngine, logprob

TOOL: Any = {
    "type": "function",
    "name": "look",
    "description": "Look at it.",
    "parameters": {"type": "object"},
    "strict": True,
}
LOOKS: list[dict[str, Any]] = [
    {"id": f"call_{i}", "type": "function", "function": {"name": "look", "arguments": f'{{"at":{i}}}'}}
    for i in range(2)
]


def looking() -> ScriptedEngine:
    """An engine that says a word and calls two tools, until it is shown what they gave."""

    def says(request: ChatRequest, choice: int) -> Line:
        seen = request.messages[-1]["role"] == "tool"
        return Line("seen it") if seen else Line("let me", LOOKS)

    return ScriptedEngine(says=says)


async def test_a_response_is_the_engines_and_is_recorded_with_its_exact_ids(house: House) -> None:
    client = house.client(await house.rollout(), agent="writer")
    response = await client.responses.create(
        model="gpt-x", input="hello there you", instructions="be kind", metadata={"a": "b"}
    )
    call = await house.one_call()
    said = [*house.engine.encode("hello there you"), END]
    assert response.output_text == "hello there you"
    assert (response.id, response.status, response.model) == (f"resp_{call.id}", "completed", "gpt-x")
    assert response.metadata == {"a": "b"}
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens) == (5, 4)
    assert response.usage.total_tokens == 9
    assert (call.dialect, call.agent, call.status, call.policy_version) == (
        "responses",
        "writer",
        "completed",
        7,
    )
    assert call.prompt_ids == house.engine.encode("be kind hello there you")
    assert call.choices[0].completion_ids == said
    assert call.choices[0].logprobs == [logprob(token) for token in said]
    assert call.request["input"] == "hello there you"
    assert type(call).model_validate(call.model_dump()) == call


async def test_every_served_parameter_reaches_the_engine() -> None:
    async with open_house(agents=("another",)) as house:
        client = house.client(await house.rollout())
        response = await client.responses.create(
            model="m",
            input=[
                {"role": "developer", "content": "be kind"},
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a b c"}]},
            ],
            tools=[TOOL],
            max_output_tokens=2,
            temperature=0.5,
            top_p=0.9,
            extra_body={"chat_template_kwargs": {"enable_thinking": False}},
        )
    function = {name: TOOL[name] for name in ("name", "description", "parameters")}
    assert house.engine.requests[0] == ChatRequest(
        attempt=("r1", 1),
        messages=[{"role": "system", "content": "be kind"}, {"role": "user", "content": "a b c"}],
        tools=[{"type": "function", "function": function}],
        max_tokens=2,
        temperature=0.5,
        top_p=0.9,
        extra={"enable_thinking": False},
        whole=True,
    )
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output_text == "a b"


async def test_options_that_ask_for_nothing_are_accepted(house: House) -> None:
    client = house.client(await house.rollout())
    await client.responses.create(
        model="m",
        input="hi",
        background=False,
        truncation="disabled",
        include=["reasoning.encrypted_content"],
        parallel_tool_calls=False,
        reasoning={"effort": "none", "summary": "auto"},
        text={"format": {"type": "text"}, "verbosity": "low"},
        tool_choice="auto",
        user="u",
        service_tier="auto",
        max_tool_calls=3,
    )
    assert len(house.engine.requests) == 1


async def test_a_reply_with_tool_calls_comes_back_as_one_message() -> None:
    async with open_house(looking()) as house:
        client = house.client(await house.rollout())
        asked: list[Any] = [{"role": "user", "content": "where"}]
        first = await client.responses.create(model="m", input=asked, tools=[TOOL])
        assert [item.type for item in first.output] == ["message", "function_call", "function_call"]
        calls = [item for item in first.output if item.type == "function_call"]
        assert [(call.call_id, call.arguments) for call in calls] == [
            ("call_0", '{"at":0}'),
            ("call_1", '{"at":1}'),
        ]
        results: list[Any] = [
            {"type": "function_call_output", "call_id": call.call_id, "output": f"saw {call.call_id}"}
            for call in calls
        ]
        whole = [*asked, *(item.model_dump() for item in first.output), *results]
        second = await client.responses.create(model="m", input=whole, tools=[TOOL])
        third = await client.responses.create(
            model="m", input=results, tools=[TOOL], previous_response_id=first.id
        )
        assert second.output_text == third.output_text == "seen it"
        recorded = (await house.calls())[0].choices[0].message
        assert house.engine.requests[1].messages == [
            *asked,
            recorded,
            {"role": "tool", "tool_call_id": "call_0", "content": "saw call_0"},
            {"role": "tool", "tool_call_id": "call_1", "content": "saw call_1"},
        ]
        assert house.engine.requests[2].messages == house.engine.requests[1].messages


@pytest.mark.parametrize("stream", [False, True])
async def test_a_reference_to_an_item_of_an_earlier_reply_is_that_item(stream: bool) -> None:
    async with open_house(looking()) as house:
        client = house.client(await house.rollout())
        asked: list[Any] = [{"role": "user", "content": "where"}]
        first: Any = await client.responses.create(model="m", input=asked, tools=[TOOL], stream=stream)
        if stream:
            first = [event async for event in first][-1].response
        given = [item.model_dump(exclude_unset=True) for item in first.output]
        results: list[Any] = [
            {"type": "function_call_output", "call_id": item["call_id"], "output": "seen"}
            for item in given[1:]
        ]
        bare, *typed = ({"type": "item_reference", "id": item["id"]} for item in given)
        del bare["type"]  # OpenAI's API lets the type be left out
        for said in ([*asked, *given, *results], [*asked, bare, *typed, *results]):
            reply = await client.responses.create(model="m", input=said, tools=[TOOL])
            assert reply.output_text == "seen it"
        whole, by_reference = house.engine.requests[1:]
        assert whole.messages == by_reference.messages
        _, one, other = await house.calls()
        assert one.prompt_ids == other.prompt_ids
        assert other.request["input"] == [*asked, *given, *results]


async def test_a_reference_to_an_item_that_is_not_remembered_is_a_404_that_says_so(house: House) -> None:
    client = house.client(await house.rollout())
    kept = await client.responses.create(model="m", input="one")
    unkept = await client.responses.create(model="m", input="one", store=False)
    other = house.client(await house.rollout("r2"))
    beyond = kept.output[0].id.replace("_0", "_1")
    for asker, item in (
        (client, unkept.output[0].id),
        (client, beyond),
        (client, "x"),
        (other, kept.output[0].id),
    ):
        said: Any = [{"role": "user", "content": "two"}, {"type": "item_reference", "id": item}]
        with pytest.raises(openai.NotFoundError, match="send the item itself") as caught:
            await asker.responses.create(model="m", input=said)
        assert (caught.value.code, caught.value.param) == ("item_not_found", "input[1]")
    assert len(house.engine.requests) == 2


async def test_text_around_a_tool_call_is_one_message_to_the_engine(house: House) -> None:
    client = house.client(await house.rollout())
    call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
    said: Any = [
        {"role": "assistant", "content": "one "},
        call,
        {"role": "assistant", "content": [{"type": "output_text", "text": "two"}]},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "x"}]},
    ]
    await client.responses.create(model="m", input=said)
    function = {"name": "look", "arguments": "{}"}
    assert house.engine.requests[0].messages == [
        {
            "role": "assistant",
            "content": "one two",
            "tool_calls": [{"id": "c", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "x"},
    ]


async def test_two_replies_in_a_row_stay_two_messages() -> None:
    lines = iter([Line("all done"), Line(tool_calls=LOOKS[:1]), Line("seen it")])
    async with open_house(ScriptedEngine(says=lambda request, choice: next(lines))) as house:
        client = house.client(await house.rollout())
        items: list[Any] = [{"role": "user", "content": "where"}]
        for _ in range(2):
            reply = await client.responses.create(model="m", input=items, tools=[TOOL])
            items += [item.model_dump() for item in reply.output]
        items.append({"type": "function_call_output", "call_id": "call_0", "output": "saw it"})
        await client.responses.create(model="m", input=items, tools=[TOOL])
        recorded = [call.choices[0].message for call in await house.calls()]
        assert house.engine.requests[2].messages == [
            items[0],
            *recorded[:2],
            {"role": "tool", "tool_call_id": "call_0", "content": "saw it"},
        ]


async def test_streamed_events_come_in_openais_order() -> None:
    async with open_house(looking()) as house:
        client = house.client(await house.rollout())
        stream = await client.responses.create(model="m", input="where", tools=[TOOL], stream=True)
        events = [event async for event in stream]
        call_events = [
            "response.output_item.added",
            "response.function_call_arguments.delta",
            "response.function_call_arguments.done",
            "response.output_item.done",
        ]
        kinds = [event.type for event in events]
        deltas = kinds.count("response.output_text.delta")
        assert deltas >= 1
        assert kinds == [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            *["response.output_text.delta"] * deltas,
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            *call_events,
            *call_events,
            "response.completed",
        ]
        assert [event.sequence_number for event in events] == list(range(len(events)))
        done = [event.item for event in events if event.type == "response.output_item.done"]
        last = events[-1]
        assert last.type == "response.completed"
        assert last.response.output == done
        assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == "let me"
        assert [event.output_index for event in events if event.type == "response.output_item.added"] == [
            0,
            1,
            2,
        ]


async def test_a_streamed_response_is_the_whole_one_in_pieces() -> None:
    async with open_house(looking()) as house:
        client = house.client(await house.rollout())
        async with client.responses.stream(model="m", input="where", tools=[TOOL]) as stream:
            async for _ in stream:
                pass
            streamed = await stream.get_final_response()
        whole = await client.responses.create(model="m", input="where", tools=[TOOL])
        calls = await house.calls()
        assert calls[0].choices == calls[1].choices
        ids = [call.id for call in calls]
        ours = [item.model_dump(exclude={"id", "parsed_arguments"}) for item in whole.output]
        theirs = [item.model_dump(exclude={"id", "parsed_arguments"}) for item in streamed.output]
        for item in theirs:
            for part in item.get("content", []):
                part.pop("parsed")
        assert theirs == ours
        assert [streamed.id, whole.id] == [f"resp_{call_id}" for call_id in ids]
        assert streamed.usage == whole.usage


async def test_a_stream_that_is_cut_or_empty_ends_as_its_whole_reply_does() -> None:
    for line, limit, status, said in (
        (Line("a b c"), 2, "incomplete", "a b"),
        (Line(""), None, "completed", ""),
    ):
        async with open_house(ScriptedEngine(says=lambda request, choice, line=line: line)) as house:
            client = house.client(await house.rollout())
            fields: dict[str, Any] = {"model": "m", "input": "hi", "max_output_tokens": limit}
            whole = await client.responses.create(**fields)
            stream: Any = await client.responses.create(**fields, stream=True)
            last = [event async for event in stream][-1]
            assert last.type == f"response.{status}"
            for response in (whole, last.response):
                assert (response.status, response.output_text) == (status, said)
                assert [item.status for item in response.output] == [status]


async def test_a_conversation_goes_on_without_the_earlier_instructions(house: House) -> None:
    client = house.client(await house.rollout())
    first = await client.responses.create(model="m", input="one", instructions="be kind")
    second = await client.responses.create(
        model="m", input="two", instructions="be brief", previous_response_id=first.id
    )
    await client.responses.create(model="m", input="three", previous_response_id=second.id)
    branch = await client.responses.create(model="m", input="other", previous_response_id=first.id)
    assert branch.previous_response_id == first.id
    begun = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "one"}]
    turns = [{"role": "user", "content": "two"}, {"role": "assistant", "content": "two"}]
    asked = [request.messages for request in house.engine.requests]
    assert asked[1] == [{"role": "system", "content": "be brief"}, *begun, turns[0]]
    assert asked[2] == [*begun, *turns, {"role": "user", "content": "three"}]
    assert asked[3] == [*begun, {"role": "user", "content": "other"}]
    prompts = [call.prompt_ids for call in await house.calls()]
    assert prompts[2] == house.engine.encode("one one two two three")


async def test_a_response_that_is_not_remembered_is_a_404_that_says_so(house: House) -> None:
    client = house.client(await house.rollout())
    kept = await client.responses.create(model="m", input="one")
    unkept = await client.responses.create(model="m", input="one", store=False)
    assert unkept.store is False
    other = house.client(await house.rollout("r2"))
    for asker, response_id in ((client, unkept.id), (client, "resp_x"), (other, kept.id)):
        with pytest.raises(openai.NotFoundError, match="send the whole conversation") as caught:
            await asker.responses.create(model="m", input="two", previous_response_id=response_id)
        assert caught.value.code == "previous_response_not_found"
        assert caught.value.param == "previous_response_id"
    assert len(house.engine.requests) == 2


async def test_a_reply_that_failed_is_not_gone_on_from() -> None:
    async with open_house(ScriptedEngine(fails_after=1)) as house:
        token = await house.rollout()
        client = house.client(token)
        with pytest.raises(openai.InternalServerError):
            await client.responses.create(model="m", input="a b", extra_headers={"x-lightning-call": "c"})
        house.engine.fails_after = None
        with pytest.raises(openai.NotFoundError):
            await client.responses.create(model="m", input="b", previous_response_id="resp_c")


@pytest.mark.parametrize("attempts", [1, 40])
def test_no_more_bytes_of_conversations_are_kept_than_there_is_room_for(attempts: int) -> None:
    kept = Conversations(most_bytes=1000)
    owners = [("r", place % attempts) for place in range(40)]
    for place, owner in enumerate(owners):
        said = {"role": "user", "content": f"{place:02d}" * 50}
        kept.keep(owner, f"resp_{place}", Turn(None, (said,)))
    found = {}
    for place, owner in enumerate(owners):
        with suppress(ApiError):
            found[place] = kept.get(owner, f"resp_{place}")
    assert list(found) == list(range(40 - len(found), 40))
    assert 0 < sum(len(orjson.dumps(turn.messages)) for turn in found.values()) <= 1000


def test_conversations_are_bounded_and_the_least_recently_used_go_first() -> None:
    kept = Conversations(attempts=2, responses=2)
    turn = Turn(None, ({"role": "user", "content": "x"},))
    for name in ("a", "b"):
        kept.keep(("r1", 1), name, turn)
    kept.get(("r1", 1), "a")
    kept.keep(("r1", 1), "c", Turn(turn, ({"role": "user", "content": "y"},)))
    with pytest.raises(ApiError):
        kept.get(("r1", 1), "b")
    assert [m["content"] for m in messages_of(kept.get(("r1", 1), "c"))] == ["x", "y"]
    kept.keep(("r2", 1), "a", turn)
    kept.get(("r1", 1), "a")
    kept.keep(("r1", 2), "a", turn)
    assert kept.get(("r1", 1), "a") is turn
    with pytest.raises(ApiError):
        kept.get(("r2", 1), "a")


async def test_an_engine_that_fails_midway_ends_the_stream_with_the_error() -> None:
    async with open_house(ScriptedEngine(fails_after=2, delay=0.01)) as house:
        client = house.client(await house.rollout())
        stream = await client.responses.create(model="m", input="one two three", stream=True)
        events: list[ResponseStreamEvent] = []
        with pytest.raises(openai.APIError, match="out of memory") as caught:
            await drain(stream, events)
        assert caught.value.code == "engine_failed"
        said = [event.delta for event in events if event.type == "response.output_text.delta"]
        assert "".join(said) == "one two"
        assert (await house.one_call()).status == "failed"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"text": {"format": {"type": "grammar"}}}, "text.format"),
        ({"tools": [{"type": "web_serch"}]}, "tools[0]"),
        ({"tools": [{"type": "shell", "environment": {"type": "container_auto"}}]}, "tools[0].environment"),
        ({"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "web_search_preview"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "mcp", "server_label": "x"}}, "tool_choice"),
        ({"input": [{"type": "web_search_call", "id": "x"}]}, "input[0]"),
        ({"input": [{"type": ["message"]}]}, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
        ({"input": [{"role": "user", "content": [{"type": []}]}]}, "input[0].content[0]"),
    ],
)
def test_an_option_that_no_engine_here_honours_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    refusal = refused(fields)
    assert (refusal.status, refusal.code, refusal.param) == (400, "unsupported_value", param)
    assert param in str(refusal)


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"input": None}, "input", "invalid_value"),
        ({"input": []}, "input", "invalid_value"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "input", "invalid_value"),
        ({"input": ["hi"]}, "input[0]", "invalid_value"),
        ({"input": [{"role": ["user"], "content": "x"}]}, "input[0].role", "invalid_value"),
        ({"input": [{"role": "user"}]}, "input[0].content", "missing_required_parameter"),
        ({"input": [{"type": "function_call"}]}, "input[0].name", "missing_required_parameter"),
        ({"input": [{"type": "function_call", "name": 5}]}, "input[0].name", "invalid_value"),
        (
            {"input": [{"type": "function_call_output", "call_id": "c"}]},
            "input[0].output",
            "missing_required_parameter",
        ),
        ({"tools": [{"type": "function"}]}, "tools[0].name", "missing_required_parameter"),
        ({"tools": [{"type": "namespace", "name": "crm"}]}, "tools[0].tools", "invalid_value"),
        (
            {"tools": [{"type": "namespace", "name": "crm", "tools": [{"type": "custom"}]}]},
            "tools[0].tools[0].name",
            "missing_required_parameter",
        ),
        (
            {"tools": [{"type": "custom", "name": "x", "format": {"type": "grammar", "syntax": "ebnf"}}]},
            "tools[0].format",
            "invalid_value",
        ),
        (
            {"input": [{"type": "custom_tool_call", "name": "x"}]},
            "input[0].input",
            "missing_required_parameter",
        ),
        (
            {"input": [{"type": "shell_call", "call_id": "c"}]},
            "input[0].action",
            "missing_required_parameter",
        ),
        (
            {"input": [{"type": "custom_tool_call_output", "output": "x"}]},
            "input[0].call_id",
            "missing_required_parameter",
        ),
        ({"max_output_tokens": 0}, "max_output_tokens", "invalid_value"),
        ({"temperature": 2.5}, "temperature", "invalid_value"),
        ({"store": 1}, "store", "invalid_value"),
        ({"include": "x"}, "include", "invalid_value"),
        ({"text": "json"}, "text", "invalid_value"),
        ({"reasoning": "low"}, "reasoning", "invalid_value"),
        ({"reasoning": {"effort": 5}}, "effort", "invalid_value"),
        ({"instructions": []}, "instructions", "invalid_value"),
        ({"metadata": []}, "metadata", "invalid_value"),
        ({"previous_response_id": 5}, "previous_response_id", "invalid_value"),
        ({"input": [{"type": "item_reference", "id": 5}]}, "input[0].id", "invalid_value"),
        ({"seed": 1}, "seed", "unknown_parameter"),
    ],
)
def test_a_value_that_the_api_does_not_allow_is_refused_by_name(
    fields: dict[str, Any], param: str, code: str
) -> None:
    refusal = refused(fields)
    assert (refusal.status, refusal.code, refusal.param) == (400, code, param)
    assert param.partition("[")[0] in str(refusal)


def refused(fields: dict[str, Any]) -> ApiError:
    """The refusal of a request with these fields."""
    with pytest.raises(ApiError) as caught:
        Responses().read(orjson.dumps({"model": "m", "input": "hi", **fields}), None, ("r1", 1))
    return caught.value


async def test_a_conversation_is_compacted_to_the_users_words_and_a_summary() -> None:
    def says(request: ChatRequest, choice: int) -> Line:
        return Line("the gist") if request.messages[-1]["content"] == ASKS else Line("seen it")

    async with open_house(ScriptedEngine(says=says)) as house:
        client = house.client(await house.rollout())
        first = await client.responses.create(model="m", input="one", tools=[TOOL])
        compacted = await client.responses.compact(
            model="m", instructions="be kind", input="two", previous_response_id=first.id
        )
        call = (await house.calls())[-1]
        assert (compacted.id, compacted.object) == (f"resp_{call.id}", "response.compaction")
        *said, summary = [
            item.model_dump(exclude_none=True, warnings=False)
            for item in compacted.output  # the SDK has no user here
        ]
        assert [item["content"][0]["text"] for item in said] == ["one", "two"]
        assert summary["type"] == "compaction"
        assert compacted.usage.output_tokens == 3
        assert house.engine.requests[-1].tools is None
        assert call.choices[0].completion_ids == [*house.engine.encode("the gist"), END]
        assert call.request["input"][-1]["content"] == ASKS  # as the model was asked

        sent: Any = [*said, summary, {"role": "user", "content": "go on"}]
        await client.responses.create(model="m", input=sent)
        told = [message["content"] for message in house.engine.requests[-1].messages]
        assert told[:2] == ["one", "two"]
        assert told[2].endswith("the gist")
        assert told[3] == "go on"
        again = await client.responses.compact(model="m", input=sent)
        assert [item.type for item in again.output] == ["message", "message", "message", "compaction"]
        foreign = {"type": "compaction", "encrypted_content": "gAAAA"}
        with pytest.raises(openai.BadRequestError, match="was not written by this gateway"):
            await client.responses.create(model="m", input=[foreign])  # type: ignore[list-item]
        with pytest.raises(openai.BadRequestError, match="a compaction is given whole"):
            await client.responses.compact(model="m", input="two", extra_body={"stream": True})


async def test_log_probabilities_are_those_of_the_tokens_of_the_text(house: House) -> None:
    client = house.client(await house.rollout())
    asked: dict[str, Any] = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
    whole = await client.responses.create(model="m", input="one two three", **asked)
    call = await house.one_call()
    (part,) = whole.output[0].content  # type: ignore[union-attr]
    scored = part.logprobs
    assert [each.token for each in scored] == ["one", "two", "three"]
    assert [each.logprob for each in scored] == call.choices[0].logprobs[:-1]
    assert [each.top_logprobs[0].token for each in scored] == ["one", "two", "three"]
    deltas, done = [], []
    stream = await client.responses.create(model="m", input="one two three", stream=True, **asked)
    async for event in stream:
        if event.type == "response.output_text.delta":
            deltas += event.logprobs
        if event.type in ("response.output_text.done", "response.content_part.done"):
            done.append(getattr(event, "part", event).logprobs)
    assert [(each.token, each.logprob) for each in deltas] == [(e.token, e.logprob) for e in scored]
    for each in done:
        assert [(e.token, e.logprob) for e in each] == [(e.token, e.logprob) for e in scored]


async def test_log_probabilities_that_were_not_asked_for_are_not_given(house: House) -> None:
    client = house.client(await house.rollout())
    whole = await client.responses.create(model="m", input="one two three")
    assert whole.output[0].content[0].logprobs == []  # type: ignore[union-attr]


async def test_a_reply_with_log_probabilities_can_be_gone_on_from(house: House) -> None:
    client = house.client(await house.rollout())
    asked: dict[str, Any] = {"include": ["message.output_text.logprobs"]}
    first = await client.responses.create(model="m", input="one", **asked)
    await client.responses.create(model="m", input="two", previous_response_id=first.id)
    again: Any = [{"type": "item_reference", "id": first.output[0].id}, {"role": "user", "content": "x"}]
    await client.responses.create(model="m", input=again)
    assert len(await house.calls()) == 3
