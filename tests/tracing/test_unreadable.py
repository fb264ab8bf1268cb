"""Unreadable bytes of a server or an app harm neither the app's call nor the rollout's end."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest

from lightning_core.dialects.chat import Chat
from lightning_core.records.types import Attempt, Call, Event, Rollout, Task
from lightning_core.runner.runner import Runner
from lightning_core.stores.sqlite import MemoryStore
from lightning_core.tracing.observed import ObservedCall
from lightning_core.tracing.scope import Scope, agent
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
from tests.tracing.replaying import EVENTS, Answer, completion, event, replaying

pytestmark = pytest.mark.usefixtures("tagging")

NUMBERED = {**json.loads(completion({"content": "it is done"})), "id": 7}
FIRST = {"id": 7, "choices": [{"index": 0, "delta": {"content": "it is "}}]}
LAST = {"id": 7, "choices": [{"index": 0, "delta": {"content": "done"}, "finish_reason": "stop"}]}
NOT_GZIP = {"content-encoding": "gzip"}


@pytest.mark.parametrize("stream", [False, True])
def test_a_reply_s_id_that_is_a_number_is_kept_as_text(stream: bool) -> None:
    streamed = Answer((event(FIRST), event(LAST)), EVENTS)
    with (
        replaying(streamed if stream else Answer((json.dumps(NUMBERED).encode(),))) as server,
        seeing(server) as (client, scope),
    ):
        answer: Any = client.chat.completions.create(model="m", messages=HELLO, stream=stream)
        if stream:
            assert len(list(answer)) == 2
    call = one(scope)
    assert (call.response_id, call.status, said(call)) == ("7", "completed", "it is done")


async def test_a_stream_left_open_whatever_it_holds_does_not_end_the_run() -> None:
    streams = []

    def solve(task: Task) -> float:
        with agent("checker"):
            stream = client.chat.completions.create(
                model="m", messages=HELLO, stream=True, extra_body={"deep": deep(300)}
            )
        next(stream)
        streams.append(stream)
        return 1.0

    def scope_for(attempt: Attempt) -> Scope:
        return Scope(attempt.rollout.id, attempt.number, NOWHERE, "token", ("writer",))

    stop = asyncio.Event()
    with replaying(Answer((event(FIRST),), EVENTS, hangs=True)) as server, client_of(server) as client:
        async with MemoryStore() as store:
            await store.enqueue(
                [Rollout(id="r1", run_id="run", task=Task(input={}), group_id="g", step=0)],
            )
            running = asyncio.create_task(Runner(solve, store, run_id="run", scope_for=scope_for).serve(stop))
            [finished] = await store.wait_finished(["r1"], timeout=60)
            stop.set()
            await running
            [call] = (await store.get_calls(["r1"]))["r1"]
        streams[0].close()
    assert (finished.reward, finished.error) == (1.0, None)
    assert (call.agent, call.status, call.endpoint) == ("checker", "cancelled", f"{server.url}/v1")
    assert call.error is not None
    assert call.error.startswith("could not be read: ")


def deep(levels: int) -> Any:
    """A list in a list in a list: more of them than what is stored may have."""
    nested: Any = []
    for _ in range(levels):
        nested = [nested]
    return nested


def test_a_request_that_can_t_be_kept_is_a_call_all_the_same_with_the_outcome_it_had() -> None:
    refused = Answer((b"{}",), status=500)
    body = {"deep": deep(300)}
    with replaying(SAID, refused) as server, seeing(server) as (client, scope):
        client.chat.completions.create(model="m", messages=HELLO, extra_body=body)
        with pytest.raises(openai.InternalServerError):
            client.chat.completions.create(model="m", messages=HELLO, extra_body=body)
    calls, _ = scope.noticed()
    assert [call.status for call in calls] == ["completed", "failed"]
    assert {call.error for call in calls} == {"could not be read: ValidationError"}


def test_a_zstd_stream_that_the_app_leaves_early_is_cancelled_with_what_was_said() -> None:
    zstandard = pytest.importorskip("zstandard")
    squeeze = zstandard.ZstdCompressor().compressobj()
    begun = squeeze.compress(STREAMED.content[1]) + squeeze.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    rest = squeeze.compress(STREAMED.content[2]) + squeeze.flush()
    answer = Answer((begun, rest), EVENTS, headers={"content-encoding": "zstd"}, waits=True)
    with replaying(answer) as server, seeing(server, timeout=60) as (client, scope):
        if "zstd" not in client._client.headers["accept-encoding"]:
            pytest.skip("the SDK's HTTP library does not read zstd here")
        stream = client.chat.completions.create(model="m", messages=HELLO, stream=True)
        next(stream)
        stream.close()
    assert (one(scope).status, said(one(scope)), one(scope).error) == ("cancelled", "it is ", None)


@pytest.mark.parametrize("stream", [False, True])
def test_a_server_s_error_in_a_broken_encoding_is_the_app_s_error_and_a_failed_call(stream: bool) -> None:
    answer = Answer((b"no gzip at all",), status=502, headers=NOT_GZIP)
    with (
        replaying(answer) as server,
        seeing(server) as (client, scope),
        pytest.raises((openai.APIConnectionError, library.DecodingError)),
    ):
        client.chat.completions.create(model="m", messages=HELLO, stream=stream)
    assert one(scope).status == "failed"
    assert "502" in (one(scope).error or "") or not stream


def test_a_reply_in_a_broken_encoding_is_recorded_as_unreadable() -> None:
    broken = Answer((b"no gzip at all",), headers=NOT_GZIP)
    with replaying(broken) as server, seeing(server) as (client, scope):
        create = client.chat.completions.with_streaming_response.create
        with create(model="m", messages=HELLO) as response:
            assert b"".join(response.http_response.iter_raw()) == broken.content[0]
    assert one(scope).status == "completed"
    assert (one(scope).error or "").startswith("its reply could not be read: ")


# another thread ends the call meanwhile ---------------------------------------------------------
def watch_in(scope: Scope) -> ObservedCall:
    url = httpx.URL("http://hosted/v1/chat/completions")
    watch = ObservedCall(scope, "checker", "c1", Chat, url, b"{}")
    scope.under_way["c1"] = watch.call
    return watch


def test_a_call_that_ends_while_the_rollout_gathers_its_calls_is_not_lost() -> None:
    class EndsWhenLookedAt(dict[str, Any]):
        def values(self) -> Any:
            watch.close(OSError("gone"))
            return super().values()

        items = values

    class EndsWhenCopied(list[Call | Event]):
        def __iter__(self) -> Any:
            watch.close(OSError("gone"))
            return super().__iter__()

    for parts in ({"under_way": EndsWhenLookedAt()}, {"seen": EndsWhenCopied()}):
        scope = Scope("r1", 1, NOWHERE, "token", (), **parts)
        watch = watch_in(scope)
        assert (one(scope).id, one(scope).status) == ("c1", "failed")


def test_of_two_tries_the_later_one_counts_also_if_it_is_under_way() -> None:
    scope = scope_of()
    watch_in(scope).close(OSError("gone"))
    assert one(scope).status == "failed"
    watch_in(scope)
    assert one(scope).status == "cancelled"


def test_a_call_that_ends_while_it_is_read_is_read_to_its_end() -> None:
    class EndsWhenAsked(httpx.Response):
        @property
        def is_error(self) -> bool:
            watch.close()
            return super().is_error

    watch = watch_in(scope_of())
    watch.response = EndsWhenAsked(500, content=b"{}")
    call = watch.call()
    assert (call.status, call.error) == ("failed", "HTTP 500 Internal Server Error")
