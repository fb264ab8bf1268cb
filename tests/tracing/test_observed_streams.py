"""Streams from a hosted model: passed on as they come, and seen to whatever end they come."""

from __future__ import annotations

import asyncio
import gzip

import openai
import pytest
from openai import AsyncOpenAI

from lightning_core.tracing.scope import agent, rollout_scope
from tests.tracing.hosting import HELLO, SAID, STREAMED, client_of, one, said, scope_of, seeing
from tests.tracing.replaying import EVENTS, Answer, event, replaying

pytestmark = pytest.mark.usefixtures("tagging")

SLOW = Answer(STREAMED.content, EVENTS, waits=True)


def test_chunks_reach_the_app_as_they_come() -> None:
    with replaying(SLOW) as server, seeing(server, timeout=60) as (client, scope):
        stream = client.chat.completions.create(model="m", messages=HELLO, stream=True)
        for number, _ in enumerate(stream):
            assert one(scope).status == ("cancelled" if number < 2 else "completed")
            server.go_on()  # the next chunk is not made before this one was read
    assert said(one(scope)) == "it is done"


async def test_chunks_reach_an_async_app_as_they_come() -> None:
    with replaying(SLOW) as server:
        async with AsyncOpenAI(api_key="sk-mine", base_url=server.url, timeout=60) as client:
            with rollout_scope(scope_of()) as scope, agent("checker"):
                stream = await client.chat.completions.create(model="m", messages=HELLO, stream=True)
                async for _ in stream:
                    server.go_on()
    assert said(one(scope)) == "it is done"


def test_a_stream_that_the_app_leaves_is_cancelled_with_what_was_said() -> None:
    with replaying(SLOW) as server, seeing(server, timeout=60) as (client, scope):
        stream = client.chat.completions.create(model="m", messages=HELLO, stream=True)
        next(stream)
        server.go_on()
        next(stream)
        assert one(scope).status == "cancelled"  # also while nobody knows whether it goes on
        stream.close()
    assert (one(scope).status, said(one(scope)), one(scope).error) == ("cancelled", "it is ", None)
    assert scope.under_way == {}


async def test_a_task_that_is_cancelled_in_its_stream_or_before_leaves_a_cancelled_call() -> None:
    with replaying(SLOW, Answer((), hangs=True)) as server:
        async with AsyncOpenAI(api_key="sk-mine", base_url=server.url) as client:

            async def read() -> None:
                async for _ in await client.chat.completions.create(model="m", messages=HELLO, stream=True):
                    pass

            for number in (1, 2):
                with rollout_scope(scope_of()) as scope, agent("checker"):
                    task = asyncio.create_task(read())
                    while len(server.arrived) < number:  # noqa: ASYNC110 - nothing tells of it
                        await asyncio.sleep(0.01)
                    task.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await task
                assert one(scope).status == "cancelled"
                assert scope.under_way == {}


def test_a_stream_that_is_over_is_complete_though_the_app_never_reads_its_end() -> None:
    unfinished = Answer((*STREAMED.content, b"data: [DONE]\n\n"), EVENTS, hangs=True)
    with replaying(unfinished) as server, seeing(server, timeout=60) as (client, scope):
        list(client.chat.completions.create(model="m", messages=HELLO, stream=True))
    assert (one(scope).status, said(one(scope))) == ("completed", "it is done")


def test_an_error_within_a_stream_and_a_stream_without_an_end_are_failures() -> None:
    broken = Answer((STREAMED.content[0], event({"error": {"message": "out of memory"}})), EVENTS)
    with replaying(broken, Answer(STREAMED.content[:2], EVENTS)) as server, client_of(server) as client:
        with rollout_scope(scope_of()) as first, agent("checker"), pytest.raises(openai.APIError):
            list(client.chat.completions.create(model="m", messages=HELLO, stream=True))
        with rollout_scope(scope_of()) as second, agent("checker"):
            list(client.chat.completions.create(model="m", messages=HELLO, stream=True))
    assert (one(first).status, one(first).error) == ("failed", "out of memory")
    assert (one(second).status, one(second).error) == ("failed", "its reply ended early")
    assert said(one(second)) == "it is "


@pytest.mark.parametrize("stream", [False, True])
def test_a_compressed_reply_is_read(stream: bool) -> None:
    plain = STREAMED if stream else SAID
    squeezed = gzip.compress(b"".join(plain.content))
    answer = Answer((squeezed[:20], squeezed[20:]), plain.kind, headers={"content-encoding": "gzip"})
    with replaying(answer) as server, seeing(server) as (client, scope):
        list(client.chat.completions.create(model="m", messages=HELLO, stream=stream))
    assert (one(scope).status, said(one(scope))) == ("completed", "it is done")
