"""Two servers as one: a rollout stays with one of them, and when one dies the other answers."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from typing import Any

import pytest

pytest.importorskip("vllm")

from lightning_core.backends.meter import Meter
from lightning_core.backends.vllm.upstream import Replicas, VllmUpstream
from lightning_core.dialects.upstream import ChatRequest
from lightning_core.errors import EngineError
from lightning_core.runner.supervisor import descendants
from tests.backends.serving import Reply, ask, plain_logprobs
from tests.vllm.network import Network
from tests.vllm.weights import PROMPT, Servers, agrees, running, sent, until

STREAMS = 32
TOKENS = 600


async def start(rambler: Servers, rollout: str | None, tokens: int) -> Any:
    """A reply of so many tokens that has begun: its generation and deltas."""
    attempt = None if rollout is None else (rollout, 1)
    request = ChatRequest([], prompt=PROMPT, max_tokens=tokens, attempt=attempt)
    generation = await rambler.upstream.chat(request)
    deltas = aiter(generation)
    reply = Reply(generation.prompt_ids)
    take(reply, await anext(deltas))
    return generation, deltas, reply


def take(reply: Reply, delta: Any) -> None:
    reply.ids += delta.token_ids
    reply.logprobs += delta.logprobs
    reply.finish_reason = delta.finish_reason


async def finish(started: Any) -> Reply:
    generation, deltas, reply = started
    async for delta in deltas:
        take(reply, delta)
    reply.policy_version = generation.policy_version
    whole: Reply = reply
    return whole


async def servers_of(rambler: Servers, rollouts: list[str]) -> list[list[str]]:
    """Who was asked for a reply of each rollout in turn."""
    found = []
    for rollout in rollouts:
        before = sent(rambler.replicas)
        await finish(await start(rambler, rollout, 1))
        found.append([url for url, count in sent(rambler.replicas).items() if count > before[url]])
    return found


async def test_a_rollout_stays_with_one_server_and_both_are_used(rambler: Servers) -> None:
    rollouts = [f"r{i}" for i in range(24)]
    first, again = await servers_of(rambler, rollouts), await servers_of(rambler, rollouts)
    assert first == again
    assert sorted({url for (url,) in first}) == sorted(rambler.replicas.urls)


async def test_without_a_rollout_the_server_with_the_fewest_replies_is_asked(rambler: Servers) -> None:
    await until(lambda: not sum(running(rambler.replicas).values()))
    started = []
    for _ in range(4):
        at_work, asked_for = running(rambler.replicas), sent(rambler.replicas)
        started.append(await start(rambler, None, 1900))
        (asked,) = (url for url, count in sent(rambler.replicas).items() if count > asked_for[url])
        assert at_work[asked] == min(at_work.values())
    for _, deltas, _ in started:
        await deltas.aclose()
    await until(lambda: not sum(running(rambler.replicas).values()))


async def test_a_reply_counts_as_work_while_it_is_sampled_and_not_while_it_waits(rambler: Servers) -> None:
    busy = Meter()
    replicas = Replicas(rambler.replicas.urls, rambler.replicas.model, busy=busy)
    upstream = VllmUpstream("tiny", replicas)
    await replicas.check()
    await replicas.hold()
    generation = await upstream.chat(ChatRequest([], prompt=PROMPT, max_tokens=20))
    assert busy.seconds == 0
    await replicas.release()
    async for _ in generation:
        pass
    await until(lambda: not sum(running(replicas).values()))
    worked = busy.seconds
    assert worked > 0
    await replicas.close()
    assert busy.seconds == worked


async def test_replies_of_a_killed_server_fail_and_it_comes_back_with_the_right_weights(
    rambler: Servers,
) -> None:
    killed, other = rambler.servers
    rollouts = [f"r{i}" for i in range(STREAMS)]
    asked_there = [asked == [killed.url] for asked in await servers_of(rambler, rollouts)]
    assert 0 < sum(asked_there) < STREAMS
    starts = await asyncio.gather(*(start(rambler, rollout, TOKENS) for rollout in rollouts))
    assert killed.pid
    for pid in descendants(killed.pid):
        with suppress(ProcessLookupError):  # it has ended with its parent
            os.kill(pid, signal.SIGKILL)
    replies = await asyncio.gather(*map(finish, starts), return_exceptions=True)
    assert any(isinstance(reply, EngineError) for reply in replies)
    for reply, was_there in zip(replies, asked_there, strict=True):
        if isinstance(reply, BaseException):
            assert was_there
            assert "a vLLM server failed during this reply" in str(reply)
        else:
            assert reply.finish_reason in ("stop", "length")
            assert reply.policy_version == 0
            assert reply.logprobs == pytest.approx(
                plain_logprobs(rambler.network, PROMPT, reply.ids), abs=1e-3
            )
    await until(lambda: killed.url in rambler.replicas.dead)
    assert {url for urls in await servers_of(rambler, rollouts[:4]) for url in urls} == {other.url}
    await until(lambda: not rambler.replicas.dead)
    await agrees(killed.url, rambler.network)
    assert [killed.url] in await servers_of(rambler, [f"r{i}" for i in range(24)])


async def test_servers_that_are_replaced_answer_no_more(rambler: Servers) -> None:
    first, second = rambler.replicas.urls
    replicas = Replicas([first], "tiny", policy_version=4)
    upstream = VllmUpstream("tiny", replicas)
    begun = aiter(await upstream.chat(ChatRequest([], prompt=PROMPT, max_tokens=1900)))
    await anext(begun)
    replicas.replace([second])
    with pytest.raises(EngineError, match="other servers have taken its place"):
        async for _ in begun:
            pass
    later = await upstream.chat(ChatRequest([], prompt=PROMPT, max_tokens=5))
    assert [delta async for delta in later]
    assert (replicas.urls, replicas.dead) == ([second], [])
    await until(lambda: running(replicas) == {second: 0})
    await replicas.close()


async def test_a_server_in_anothers_place_is_taken_back_after_a_moment_away(rambler: Servers) -> None:
    first, second = rambler.replicas.urls
    replicas = Replicas([first], "tiny", policy_version=4)
    upstream = VllmUpstream("tiny", replicas)
    await upstream.check()
    async with Network(second) as network:
        replicas.replace([network.url])
        async for _ in await upstream.chat(ChatRequest([], prompt=PROMPT, max_tokens=1)):
            pass
        generation = await upstream.chat(ChatRequest([], prompt=PROMPT, max_tokens=1900))
        deltas = aiter(generation)
        await anext(deltas)
        network.cut()
        await until(lambda: bool(replicas.dead))
        network.up = True
        await until(lambda: not replicas.dead)
        await generation.aclose()
        await replicas.close()


async def test_more_choices_than_a_server_takes_at_once_are_all_answered(rambler: Servers) -> None:
    prompts = [[5 + i, *range(5, 105)] for i in range(400)]
    asked: dict[str, Any] = {"messages": [], "temperature": 2.0, "max_tokens": 10}
    replies = await asyncio.gather(*(ask(rambler, **asked, prompt=prompt) for prompt in prompts))
    assert [reply.prompt_ids for reply in replies] == prompts
    assert all(reply.finish_reason for reply in replies)
    assert not rambler.replicas.dead
