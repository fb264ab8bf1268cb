"""A slow server keeps its replies, a dead one loses them and is left out: in front of a stand-in for vLLM."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest

pytest.importorskip("aiohttp")

from lightning_core.backends.serving.completion import Completion, CompletionRequest, SamplingOptions
from lightning_core.backends.vllm.upstream import Replicas, VllmUpstream
from lightning_core.errors import EngineError
from tests.backends.serving import gateway
from tests.vllm.standin import TOKEN, StandIn
from tests.vllm.weights import running, sent, until, waiting

STREAMS = 2000
DESCRIPTORS = 2 * STREAMS + 500
"""Both ends of every stream are in this process."""
NEVER = 1e6
"""Seconds."""


@pytest.fixture
async def server() -> AsyncIterator[StandIn]:
    async with StandIn() as started:
        yield started


@pytest.fixture
def descriptors() -> Iterator[None]:
    """As many as the streams of a test need, where the system allows it."""
    before, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most < DESCRIPTORS:
        pytest.skip(f"this system allows {most} open files for each process")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before, DESCRIPTORS), most))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (before, most))


@asynccontextmanager
async def replicas_of(*urls: str, **options: Any) -> AsyncIterator[Replicas]:
    replicas = Replicas(urls, "tiny", **options)
    yield replicas
    await replicas.close()


@dataclass
class Served:
    upstream: VllmUpstream


@contextmanager
def silent_server() -> Iterator[str]:
    """It takes every connection and all that is sent, and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=1000) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@contextmanager
def started(*arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A stand-in in a process of its own, and its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    program = str(Path(__file__).with_name("standin.py"))  # by its path: verl brings a `tests` of its own
    process = subprocess.Popen([sys.executable, program, str(port), *arguments])
    try:
        while process.poll() is None:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.05)
        assert process.poll() is None
        yield process, f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def submit(
    replicas: Replicas, number: int, *, tokens: int = 2, request: CompletionRequest | None = None
) -> Completion:
    """A reply in line to a prompt that holds its number."""
    completion = Completion([number], SamplingOptions(max_tokens=tokens), request or CompletionRequest())
    replicas.submit(completion, frozenset())
    return completion


async def ends(completions: Sequence[Completion]) -> None:
    await until(lambda: all(each.finished for each in completions))


def answered(completions: Sequence[Completion], tokens: int = 2) -> bool:
    """Whether all were, to their last token."""
    errors = {str(each.error) for each in completions if each.error is not None}
    assert not errors
    return all(each.ids == [TOKEN] * tokens and each.finish_reason == "length" for each in completions)


@pytest.mark.usefixtures("descriptors")
async def test_no_stream_of_a_slow_server_fails_while_others_get_on(server: StandIn) -> None:
    """One reply is broken off, and /health does not answer: 1,999 others stay whole."""
    server.well.clear()
    server.breaking, server.pace = 1, 2.0
    async with replicas_of(server.url, max_running=STREAMS, silence=6.0, probe_seconds=0.1) as replicas:
        completions = [submit(replicas, number, tokens=4) for number in range(STREAMS)]
        await until(lambda: server.probes > 4 or bool(replicas.dead))
        server.well.set()
        await ends(completions)
        (broken,) = (each for each in completions if each.error is not None)
        assert f"a vLLM server failed during this reply: {server.url} broke off" in str(broken.error)
        assert answered([each for each in completions if each is not broken], 4)
        assert sent(replicas) == {server.url: STREAMS}
        assert replicas.dead == []
        assert server.most_open >= STREAMS - 1, "the one that is broken off may end before the last begins"


async def test_no_more_replies_than_the_limit_are_under_way_and_the_rest_come_in_order(
    server: StandIn,
) -> None:
    server.go.clear()
    async with replicas_of(server.url, max_running=8) as replicas:
        completions = [submit(replicas, number) for number in range(200)]
        await until(lambda: len(server.prompts) == 8 and waiting(replicas) == {server.url: 192})
        assert running(replicas) == {server.url: 8}
        server.go.set()
        await ends(completions)
        assert answered(completions)
        assert server.most_open == 8
        assert first_seen(server.prompts, 8) == list(range(200))


def first_seen(prompts: list[list[int]], apart: int) -> list[int]:
    """The numbers as they came; those that were under way together may have overtaken each other."""
    numbers = [number for (number,) in prompts]
    assert all(abs(place - number) < apart for place, number in enumerate(numbers))
    return sorted(numbers)


async def test_who_waits_may_leave_and_the_next_takes_its_turn(server: StandIn) -> None:
    server.go.clear()
    async with replicas_of(server.url, max_running=1) as replicas:
        first, second, third = (submit(replicas, number) for number in range(3))
        await until(lambda: len(first.ids) == 1 and waiting(replicas) == {server.url: 2})
        second.cancel()
        await ends([second])
        assert waiting(replicas) == {server.url: 1}
        first.cancel()
        await until(lambda: server.prompts == [[0], [2]])
        server.go.set()
        await ends([third])
        assert answered([third])
        await until(lambda: running(replicas) == {server.url: 0})


async def test_a_hold_ends_with_the_replies_under_way_and_not_with_those_that_wait(server: StandIn) -> None:
    """All choices of a request are answered by one version, though only the first was under way."""
    server.go.clear()
    async with replicas_of(server.url, max_running=1, policy_version=4) as replicas:
        request, later = CompletionRequest(), CompletionRequest()
        begun = [submit(replicas, 0, request=request)]
        new = [submit(replicas, number, request=later) for number in (1, 2)]
        begun += [submit(replicas, 0, request=request) for _ in range(2)]
        await until(lambda: waiting(replicas) == {server.url: 4} and bool(begun[0].ids))
        holding = asyncio.create_task(replicas.hold())
        await until(lambda: not replicas._dispatcher._open.is_set())
        server.go.set()
        await holding
        assert answered(begun)
        assert server.prompts == [[0]] * 3
        assert not any(each.ids for each in new)
        replicas.replace([server.url], 5)
        await replicas.release()
        await ends(new)
        assert answered(new)
        assert (request.policy_version, later.policy_version) == (4, 5)


async def test_a_server_that_takes_requests_and_never_answers_is_given_up_though_more_are_sent() -> None:
    with silent_server() as url:
        async with replicas_of(url, silence=0.8, probe_seconds=0.05) as replicas:
            completions: list[Completion] = []
            while not replicas.dead:
                completions.append(submit(replicas, len(completions)))
                await asyncio.sleep(0.05)
            assert not any(each.ids for each in completions)


async def test_replies_of_a_silent_server_fail_and_what_waits_there_is_answered_by_another(
    server: StandIn,
) -> None:
    with silent_server() as url:
        options = {"max_running": 5, "silence": 0.8, "probe_seconds": 0.05}
        async with replicas_of(url, server.url, **options) as replicas:
            completions = [submit(replicas, number) for number in range(20)]
            await ends(completions)
            failed = [each for each in completions if each.error is not None]
            assert all(isinstance(each.error, EngineError) and not each.ids for each in failed)
            assert answered([each for each in completions if each not in failed])
            assert (replicas.dead, sent(replicas)) == ([url], {url: 5, server.url: 15})
            assert len(failed) == 5


async def test_a_server_that_refuses_is_lost_and_requests_wait_only_so_long() -> None:
    with started() as (process, url):
        async with replicas_of(url, probe_seconds=0.05, silence=NEVER, server_timeout=0.1) as replicas:
            completion = submit(replicas, 0)
            await until(lambda: len(completion.ids) == 1)
            process.kill()
            await ends([completion])
            assert f"a vLLM server failed during this reply: {url} broke off" in str(completion.error)
            await until(lambda: replicas.dead == [url])
            later = submit(replicas, 1)
            await ends([later])
            assert "no server of model 'tiny' has answered for 0.1 s" in str(later.error)


async def test_choices_that_wait_fail_with_those_that_a_dead_server_had_begun(server: StandIn) -> None:
    """They are answered by one version, which may be gone with the server."""
    async with StandIn() as dying, replicas_of(dying.url, max_running=1) as replicas:
        dying.go.clear()
        request = CompletionRequest()
        choices = [submit(replicas, 0, request=request) for _ in range(2)]
        other = submit(replicas, 1)
        await until(lambda: waiting(replicas) == {dying.url: 2} and bool(choices[0].ids))
        await dying.die()
        await ends(choices)
        assert all(isinstance(each.error, EngineError) for each in choices)
        await asyncio.wait_for(replicas.hold(), 5)
        replicas.replace([f"{server.url}/v1"], 1)
        await replicas.release()
        await ends([other])
        assert answered([other])
        assert (request.policy_version, other.request.policy_version) == (0, 1)


async def test_a_call_whose_server_dies_is_sent_again_by_the_sdk_and_answered_by_another() -> None:
    """A client that does not send it again gets a 500."""
    async with StandIn() as one, StandIn() as other, replicas_of(one.url, other.url) as replicas:
        for each in (one, other):
            each.go.clear()
        upstream = VllmUpstream("tiny", replicas)
        async with gateway(Served(upstream)) as (web, store):
            client = openai.AsyncOpenAI(
                base_url=f"{str(web.base_url).rstrip('/')}/v1",
                api_key=web.headers["authorization"].split()[1],
            )
            body: Any = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
            plain = asyncio.create_task(web.post("/v1/chat/completions", json=body))
            retried = asyncio.create_task(client.chat.completions.create(**body))
            await until(lambda: len(one.prompts + other.prompts) == 2)
            asked, left = (one, other) if one.prompts else (other, one)
            assert (len(asked.prompts), left.prompts) == (2, [])  # a rollout stays with one server
            left.go.set()
            await asked.die()
            refused = await plain
            assert refused.status_code == 500
            assert "a vLLM server failed during this reply" in refused.text
            assert (await retried).choices[0].finish_reason == "length"
            assert replicas.dead == [asked.url]
            statuses = [call.status for call in (await store.get_calls(["r1"]))["r1"]]
            assert sorted(statuses) == ["completed", "failed", "failed"]
            await client.close()


async def test_a_server_that_dies_while_idle_is_lost_and_taken_back_once_it_answers(server: StandIn) -> None:
    revived = asyncio.Event()

    async def revive() -> None:
        loop.call_soon_threadsafe(revived.set)

    loop, port = asyncio.get_running_loop(), int(server.url.rpartition(":")[2])
    async with replicas_of(server.url, probe_seconds=0.02, revive=revive) as replicas:
        await ends([submit(replicas, 0)])
        await server.die()
        await asyncio.wait_for(revived.wait(), 10)
        assert replicas.dead == [server.url]
        later = submit(replicas, 1)
        await server.listen(port)
        await ends([later])
        assert answered([later])
        assert replicas.dead == []


async def test_a_server_that_may_have_other_weights_is_out_until_it_is_replaced(server: StandIn) -> None:
    port = int(server.url.rpartition(":")[2])
    async with replicas_of(server.url, probe_seconds=0.02, take_back=False) as replicas:
        await ends([submit(replicas, 0)])
        await server.die()
        await until(lambda: replicas.dead == [server.url])
        await server.listen(port)
        probes = server.probes
        later = submit(replicas, 1)
        await asyncio.sleep(0.3)
        assert (server.probes, replicas.dead, later.ids) == (probes, [server.url], [])
        replicas.replace([server.url])
        await ends([later])
        assert answered([later])


async def test_a_server_is_looked_after_while_another_takes_its_time(server: StandIn) -> None:
    """One is being started, for as long as that takes: the other is given up meanwhile."""

    async def revive() -> None:
        await asyncio.Event().wait()

    await server.die()
    with silent_server() as url:
        options = {"silence": 0.8, "probe_seconds": 0.02, "revive": revive}
        async with replicas_of(server.url, url, **options) as replicas:
            submit(replicas, 0)
            await until(lambda: replicas.dead == [server.url, url])


async def test_no_server_is_blamed_when_this_process_has_no_descriptors_left() -> None:
    with started("0.2") as (_, url):
        async with replicas_of(url, probe_seconds=0.1) as replicas:
            await ends([submit(replicas, 0)])
            before, most = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 20, most))
            try:
                completions = [submit(replicas, number) for number in range(40)]
                await ends(completions)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (before, most))
            failed = [each for each in completions if each.error is not None]
            assert failed, "there were descriptors enough"
            assert all("Too many open files" in str(each.error) for each in failed)
            assert answered([each for each in completions if each not in failed])
            assert replicas.dead == []
