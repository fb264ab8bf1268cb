"""Calls that stay at the app's own endpoint: untouched, and seen whole."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

from lightning_core.records.linking import link
from lightning_core.records.types import Attempt, Call, Rollout, Task
from lightning_core.runner.runner import Runner
from lightning_core.stores.sqlite import MemoryStore
from lightning_core.testing.server import GatewayDouble
from lightning_core.testing.truth import Tagged, mark, mistakes, read_marks
from lightning_core.tracing.scope import Scope, agent, rollout_scope
from lightning_core.tracing.tools import report_tool
from tests.tracing.hosting import (
    HELLO,
    NOWHERE,
    SAID,
    STREAMED,
    client_of,
    library,
    one,
    said,
    scope_of,
    seeing,
)
from tests.tracing.replaying import Answer, Replay, completion, replaying
from tests.tracing.traffic import send

pytestmark = pytest.mark.usefixtures("tagging")


def asked(server: Replay, **options: Any) -> Call:
    """Returns the record of one call of `checker`, which may fail."""
    with seeing(server, **options) as (client, scope), suppress(openai.OpenAIError):
        client.chat.completions.create(model="m", messages=HELLO)
    return one(scope)


# what is seen ---------------------------------------------------------------------------------
def test_a_call_is_seen_with_all_that_the_gateway_would_record_but_token_ids() -> None:
    with replaying(SAID) as server:
        began = time.time()
        base = server.url.replace("//", "//user:secret@") + "/some/v1"
        with seeing(server, base_url=base, default_query={"key": "secret"}) as (client, scope):
            client.chat.completions.create(model="m", messages=HELLO, temperature=0.5)
    call = one(scope)
    assert (call.rollout_id, call.attempt, call.agent, call.trained) == ("r1", 2, "checker", False)
    assert (call.dialect, call.model, call.status, call.error) == ("chat", "m", "completed", None)
    assert call.request == {"model": "m", "messages": HELLO, "temperature": 0.5}
    assert call.choices[0].message == {"role": "assistant", "content": "it is done"}
    assert (call.choices[0].finish_reason, call.choices[0].completion_ids, call.prompt_ids) == (
        "stop",
        None,
        None,
    )
    assert (call.response_id, call.endpoint) == ("chatcmpl-7", f"{server.url}/some/v1")
    assert began <= call.started_at <= call.ended_at <= time.time()
    assert Call.model_validate_json(call.model_dump_json()) == call
    assert "secret" not in repr(call)
    assert "sk-mine" not in repr(call)


@pytest.mark.parametrize("stream", [False, True])
def test_the_request_is_byte_for_byte_what_the_app_made(stream: bool) -> None:
    with replaying(STREAMED if stream else SAID) as server, client_of(server) as client:
        client.chat.completions.create(model="m", messages=HELLO, stream=stream)
        with rollout_scope(scope_of()), agent("checker"):
            client.chat.completions.create(model="m", messages=HELLO, stream=stream)
    outside, inside = server.arrived
    assert inside == outside


def test_what_is_not_a_call_of_a_model_or_not_of_a_rollout_is_not_seen(hosted: GatewayDouble) -> None:
    with client_of(hosted) as client:
        client.chat.completions.create(model="m", messages=HELLO)
        with rollout_scope(scope_of()) as scope, agent("checker"):
            client.models.list()
            client.post("/embeddings", body={}, cast_to=object)
            client.get("/responses/resp_1", cast_to=object)
    assert len(hosted.seen) == 4
    assert scope.noticed() == ([], [])


def test_a_call_that_the_gateway_records_is_not_seen_as_well(gateway: GatewayDouble) -> None:
    scope = Scope("r1", 1, gateway.url, "token", ("writer",))
    with rollout_scope(scope):
        with OpenAI(api_key="none") as routed, agent("writer"):
            routed.chat.completions.create(model="m", messages=HELLO)
        base = f"{gateway.url}/rollouts/r1/agents/checker/v1"
        with OpenAI(api_key="token", base_url=base) as by_path, agent("checker"):
            by_path.chat.completions.create(model="m", messages=HELLO)
    assert len(gateway.seen) == 2
    assert scope.noticed() == ([], [])


# every way to call ----------------------------------------------------------------------------
class Said(BaseModel):
    word: str


def by_chat(client: OpenAI) -> None:
    client.chat.completions.create(model="m", messages=HELLO)


def by_stream(client: OpenAI) -> None:
    assert len(list(client.chat.completions.create(model="m", messages=HELLO, stream=True))) > 3


def by_stream_helper(client: OpenAI) -> None:
    with client.chat.completions.stream(model="m", messages=HELLO) as stream:
        assert stream.get_final_completion().choices[0].message.content == "it is done"


def by_raw_response(client: OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(model="m", messages=HELLO)
    assert raw.parse().choices[0].message.content == "it is done"


def by_streaming_response(client: OpenAI) -> None:
    with client.chat.completions.with_streaming_response.create(model="m", messages=HELLO) as response:
        assert "it is done" in "".join(response.iter_text())
        assert response.elapsed.total_seconds() > 0


def by_options(client: OpenAI) -> None:
    client.with_options(timeout=9).chat.completions.create(model="m", messages=HELLO)


def by_responses(client: OpenAI) -> None:
    client.responses.create(model="m", input="hello")


def by_responses_stream(client: OpenAI) -> None:
    assert len(list(client.responses.create(model="m", input="hello", stream=True))) > 3


def by_async_chat(client: OpenAI) -> None:
    async def main() -> None:
        async with AsyncOpenAI(api_key="sk-mine", base_url=client.base_url) as opener:
            await opener.chat.completions.create(model="m", messages=HELLO)

    asyncio.run(main())


def by_async_stream(client: OpenAI) -> None:
    async def main() -> None:
        opener = AsyncOpenAI(api_key="sk-mine", base_url=client.base_url)
        async with opener, opener.chat.completions.stream(model="m", messages=HELLO) as stream:
            assert len([event async for event in stream]) > 3

    asyncio.run(main())


def by_async_streaming_response(client: OpenAI) -> None:
    async def main() -> None:
        async with AsyncOpenAI(api_key="sk-mine", base_url=client.base_url) as opener:
            create = opener.chat.completions.with_streaming_response.create
            async with create(model="m", messages=HELLO) as response:
                await response.read()

    asyncio.run(main())


WAYS = [
    *(by_chat, by_stream, by_stream_helper, by_raw_response, by_streaming_response, by_options),
    *(by_responses, by_responses_stream, by_async_chat, by_async_stream, by_async_streaming_response),
]


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_call_is_seen(hosted: GatewayDouble, way: Callable[[OpenAI], None]) -> None:
    with seeing(hosted) as (client, scope):
        way(client)
    call = one(scope)
    assert (said(call), call.status, call.choices[0].finish_reason) == ("it is done", "completed", "stop")
    assert call.dialect == ("responses" if "responses" in way.__name__ else "chat")
    assert call.response_id
    assert scope.under_way == {}


def test_a_structured_reply_is_seen() -> None:
    with (
        replaying(Answer((completion({"content": '{"word": "yes"}'}),))) as server,
        seeing(server) as (client, scope),
    ):
        parsed = client.chat.completions.parse(model="m", messages=HELLO, response_format=Said)
    assert parsed.choices[0].message.parsed == Said(word="yes")
    assert said(one(scope)) == '{"word": "yes"}'
    assert "response_format" in one(scope).request


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", ["chat", "responses"])
def test_a_tool_run_is_linked_to_the_hosted_call_that_asked_for_it(
    hosted: GatewayDouble, api: str, stream: bool
) -> None:
    prompt: Any = [{"role": "user", "content": mark(calls="search+look")}]
    with seeing(hosted) as (client, scope):
        if api == "chat":
            answer: Any = client.chat.completions.create(model="m", messages=prompt, stream=stream)
        else:
            answer = client.responses.create(model="m", input=prompt, stream=stream)
        if stream:
            list(answer)
        [call], _ = scope.noticed()
        asked_for = call.choices[0].message["tool_calls"]
        assert isinstance(asked_for, list)
        for tool in asked_for:
            report_tool("any", agent="checker", framework="own", tool_call_id=tool["id"])
    calls, events = scope.noticed()
    assert [tool["function"] for tool in asked_for] == [
        {"name": "search", "arguments": "{}"},
        {"name": "look", "arguments": "{}"},
    ]
    assert [linked.call_id for linked in link(calls, events)] == [call.id, call.id]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("fail", "status"), [(2, "completed"), (3, "failed")])
def test_the_tries_of_a_call_are_one_call_and_the_last_one_wins(
    hosted: GatewayDouble, fail: int, status: str, stream: bool
) -> None:
    prompt: Any = [{"role": "user", "content": mark(nonce=1, fail=fail)}]
    with seeing(hosted, max_retries=2) as (client, scope):
        try:
            answer: Any = client.chat.completions.create(model="m", messages=prompt, stream=stream)
            list(answer)
        except openai.InternalServerError:
            assert fail == 3
    assert len(hosted.seen) == 3
    assert one(scope).status == status
    assert (one(scope).error or "").startswith("HTTP 500") == (fail == 3)


# failures and secrets -------------------------------------------------------------------------
def test_a_refusal_is_recorded_in_the_servers_words_and_that_of_a_key_without_them() -> None:
    words = json.dumps({"error": {"message": "the key sk-mine is wrong"}}).encode()
    with replaying(
        Answer((words,), status=429), Answer((words,), status=401), Answer((b"<html>",), status=502)
    ) as server:
        calls = [asked(server) for _ in range(3)]
    assert {call.status for call in calls} == {"failed"}
    assert [call.error for call in calls] == [
        "HTTP 429 Too Many Requests: the key sk-mine is wrong",
        "HTTP 401 Unauthorized",
        "HTTP 502 Bad Gateway",
    ]


def test_a_call_that_times_out_or_finds_nobody_has_failed() -> None:
    with replaying(Answer((b"{",), hangs=True)) as server:
        slow = asked(server, timeout=0.2)
        nobody = asked(server, base_url="http://127.0.0.1:2/v1")
    assert (slow.status, slow.error) == ("failed", "ReadTimeout: timed out")
    assert nobody.status == "failed"
    assert (nobody.error or "").startswith("ConnectError")


@pytest.mark.parametrize(
    "body", [b"[]", b'{"choices": [7]}', b'{"choices": [{"message": 3}]}', b"<html>", b""]
)
def test_a_reply_of_another_shape_is_recorded_as_unreadable_and_harms_nobody(body: bytes) -> None:
    with replaying(Answer((body,))) as server, seeing(server) as (client, scope):
        raw = client.chat.completions.with_raw_response.create(model="m", messages=HELLO)
    assert raw.http_response.content == body
    assert one(scope).status == "completed"
    assert one(scope).choices == []


def test_keys_that_endpoints_are_given_in_the_body_are_not_kept() -> None:
    tool: Any = {"type": "mcp", "server_label": "s", "server_url": "https://s", "authorization": "secret"}
    with replaying(SAID) as server, client_of(server) as client, rollout_scope(scope_of()) as scope:
        client.chat.completions.create(
            model="m",
            messages=HELLO,
            tools=[{**tool, "headers": {"x": "secret"}}],
            extra_body={"api_key": "secret"},
        )
    assert b"secret" in server.arrived[0].body
    assert "secret" not in repr(one(scope))
    assert one(scope).request["tools"] == [{"type": "mcp", "server_label": "s", "server_url": "https://s"}]


def test_the_apps_own_credentials_do_not_replace_the_rollouts_token(gateway: GatewayDouble) -> None:
    with library.Client(auth=("user", "secret")) as http:
        client = OpenAI(api_key="sk-mine", base_url=NOWHERE, http_client=http)
        with rollout_scope(Scope("r1", 1, gateway.url, "token", None)):
            client.chat.completions.create(model="m", messages=HELLO)
    assert gateway.seen[0].headers["authorization"] == "Bearer token"


# whole rollouts -------------------------------------------------------------------------------
async def test_what_was_under_way_when_the_attempt_ended_is_stored_as_cancelled() -> None:
    def solve(task: Task) -> float:
        with agent("checker"):
            thread.start()
        while not server.arrived:
            time.sleep(0.01)
        return 1.0

    def ask() -> None:
        with suppress(openai.OpenAIError):
            client.chat.completions.create(model="m", messages=HELLO)

    thread = Thread(target=ask)

    def scope_for(attempt: Attempt) -> Scope:
        return Scope(attempt.rollout.id, attempt.number, NOWHERE, "token", ("writer",))

    rollout = Rollout(id="r1", run_id="run", task=Task(input={}), group_id="g", step=0)
    stop = asyncio.Event()
    with replaying(Answer((), hangs=True)) as server:
        client = client_of(server)
        async with MemoryStore() as store:
            await store.enqueue([rollout])
            running = asyncio.create_task(Runner(solve, store, run_id="run", scope_for=scope_for).serve(stop))
            await store.wait_finished(["r1"], timeout=60)
            stop.set()
            await running
            [call] = (await store.get_calls(["r1"]))["r1"]
    thread.join()
    assert (call.agent, call.status, call.trained, call.choices) == ("checker", "cancelled", False, [])


@pytest.fixture
def crowd(hosted: GatewayDouble, monkeypatch: pytest.MonkeyPatch) -> GatewayDouble:
    """The endpoint of every client that names none itself."""
    monkeypatch.setenv("OPENAI_BASE_URL", f"{hosted.url}/v1")
    return hosted


async def test_five_hundred_calls_from_threads_tasks_and_streams_are_seen_as_what_they_are(
    crowd: GatewayDouble,
) -> None:
    scopes: dict[str, Scope] = {}
    made = await send(lambda name: scopes.setdefault(name, scope_of(name)), rollouts=28, calls=18)
    calls = [call for scope in scopes.values() for call in scope.noticed()[0]]
    assert mistakes(Tagged(read_marks(c.request), c.rollout_id, c.agent, c.id) for c in calls) == []
    assert len({call.id for call in calls}) == len(calls) == made == 504
    assert {(call.status, said(call), call.endpoint) for call in calls} == {
        ("completed", "it is done", f"{crowd.url}/v1")
    }
    assert not any("lightning" in name for seen in crowd.seen for name in seen.headers)
    assert all(scope.under_way == {} for scope in scopes.values())
