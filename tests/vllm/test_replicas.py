"""Two servers as one: a rollout stays with one of them, and what one was at goes on at the other."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from typing import Any

import pytest

pytest.importorskip("vllm")

from lightning_core.backends.chat.folder import tiny_folder
from lightning_core.backends.meter import Meter
from lightning_core.backends.vllm.engine import VllmEngine
from lightning_core.backends.vllm.replicas import Replicas
from lightning_core.backends.vllm.upstream import VllmUpstream
from lightning_core.errors import EngineError
from lightning_core.gateway.upstream import ChatRequest
from lightning_core.runner.warden import descendants
from tests.backends.serving import Reply, ask, plain_logprobs
from tests.vllm.network import Network
from tests.vllm.weights import PROMPT, agrees, until

STREAMS = 32
TOKENS = 600


async def start(engine: VllmEngine, rollout: str | None, tokens: int) -> Any:
    """A reply of so many tokens that has begun: its generation and deltas."""
    attempt = None if rollout is None else (rollout, 1)
    request = ChatRequest([], prompt=PROMPT, max_tokens=tokens, attempt=attempt)
    generation = await engine.upstream.chat(request)
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


async def servers_of(engine: VllmEngine, rollouts: list[str]) -> list[list[str]]:
    """Who was asked for a reply of each rollout in turn."""
    found = []
    for rollout in rollouts:
        before = engine.replicas.sent
        await finish(await start(engine, rollout, 1))
        found.append([url for url, count in engine.replicas.sent.items() if count > before[url]])
    return found


async def test_a_rollout_stays_with_one_server_and_both_are_used(engine: VllmEngine) -> None:
    rollouts = [f"r{i}" for i in range(24)]
    first, again = await servers_of(engine, rollouts), await servers_of(engine, rollouts)
    assert first == again
    assert sorted({url for (url,) in first}) == sorted(engine.replicas.urls)


@pytest.mark.usefixtures("rambler")
async def test_without_a_rollout_the_server_with_the_fewest_replies_is_asked(engine: VllmEngine) -> None:
    started = []
    for _ in range(4):
        running, sent = engine.replicas.running, engine.replicas.sent
        started.append(await start(engine, None, 1900))
        (asked,) = (url for url, count in engine.replicas.sent.items() if count > sent[url])
        assert running[asked] == min(running.values())
    for _, deltas, _ in started:
        await deltas.aclose()
    await until(lambda: not sum(engine.replicas.running.values()))


async def test_a_reply_counts_as_work_while_it_is_sampled_and_not_while_it_waits(engine: VllmEngine) -> None:
    busy = Meter()
    replicas = Replicas(engine.replicas.urls, engine.replicas.model, busy=busy)
    upstream = VllmUpstream(tiny_folder(), replicas)
    await replicas.check()
    await replicas.hold()
    generation = await upstream.chat(ChatRequest([], prompt=PROMPT, max_tokens=20))
    assert busy.seconds == 0
    await replicas.release()
    async for _ in generation:
        pass
    await until(lambda: not sum(replicas.running.values()))
    worked = busy.seconds
    assert worked > 0
    await replicas.close()
    assert busy.seconds == worked


async def test_what_a_killed_server_was_at_goes_on_at_the_other(engine: VllmEngine, rambler: Any) -> None:
    version = engine.replicas.policy_version
    killed = engine.servers[0]
    rollouts = [f"r{i}" for i in range(STREAMS)]
    asked_there = [asked == [killed.url] for asked in await servers_of(engine, rollouts)]
    assert 0 < sum(asked_there) < STREAMS
    before = sum(engine.replicas.sent.values())
    starts = [asyncio.create_task(start(engine, rollout, TOKENS)) for rollout in rollouts]
    there = [each for each, is_there in zip(starts, asked_there, strict=True) if is_there]
    await asyncio.wait(there, return_when=asyncio.FIRST_COMPLETED)
    assert killed.pid
    for pid in descendants(killed.pid):
        with suppress(ProcessLookupError):  # it has ended with its parent
            os.kill(pid, signal.SIGKILL)
    await until(lambda: killed.url in engine.replicas.dead)
    replies = await asyncio.gather(*[finish(await each) for each in starts])
    assert sum(engine.replicas.sent.values()) - before > STREAMS, "no reply was broken off"
    for reply in replies:
        assert reply.finish_reason in ("stop", "length")
        assert len(reply.ids) == len(reply.logprobs) == TOKENS or reply.ids[-1] == 2
        assert reply.policy_version == version
        assert reply.logprobs == pytest.approx(plain_logprobs(rambler, PROMPT, reply.ids), abs=1e-3)
    assert len({tuple(reply.ids) for reply in replies}) == STREAMS
    # it is started again from the first weights, and takes part with the present ones
    await until(lambda: not engine.replicas.dead)
    await agrees(engine, killed.url, rambler)
    assert [killed.url] in await servers_of(engine, [f"r{i}" for i in range(24)])


@pytest.mark.usefixtures("rambler")
async def test_servers_that_are_replaced_answer_no_more(engine: VllmEngine) -> None:
    first, second = engine.replicas.urls
    replicas = Replicas([first], "tiny", policy_version=4)
    upstream = VllmUpstream("tiny", replicas)
    generation = await upstream.chat(ChatRequest([], prompt=PROMPT, max_tokens=200))
    deltas = aiter(generation)
    ids = [*(await anext(deltas)).token_ids]
    replicas.replace([second])
    async for delta in deltas:
        ids += delta.token_ids
    assert len(ids) == 200 or ids[-1] == 2
    assert (replicas.urls, replicas.dead) == ([second], [])
    await until(lambda: replicas.running == {second: 0})
    await replicas.close()


@pytest.mark.usefixtures("rambler")
async def test_who_waits_for_the_last_server_does_not_keep_new_weights_waiting(engine: VllmEngine) -> None:
    """What was begun ends with an error, as no server has its weights; the rest is answered by new ones."""
    first, second = engine.replicas.urls
    replicas = Replicas([first], "tiny", policy_version=4)
    upstream = VllmUpstream("tiny", replicas)
    begun = await upstream.chat(ChatRequest([], prompt=PROMPT, max_tokens=1900))
    deltas = aiter(begun)
    await anext(deltas)
    await replicas.drop(first, "it is gone")
    waiting = await upstream.chat(ChatRequest([], prompt=PROMPT, max_tokens=5, n=2))
    await replicas.hold(last=True)
    with pytest.raises(EngineError, match="the last server with version 4 of the weights was lost"):
        async for _ in deltas:
            pass
    await replicas.set_version(5, [second])
    replicas.replace([second])
    await replicas.release()
    replies = [delta.token_ids async for delta in waiting]
    assert sum(map(len, replies)) == 10
    assert waiting.policy_version == 5
    await replicas.close()


@pytest.mark.usefixtures("rambler")
async def test_weights_that_could_not_be_restored_are_given_again(engine: VllmEngine) -> None:
    first = engine.replicas.urls[0]
    tries: list[tuple[str, int]] = []

    async def restore(url: str, version: int) -> None:
        tries.append((url, version))
        if len(tries) == 1:
            raise ValueError("what nobody has thought of")

    replicas = Replicas([first], "tiny", policy_version=4, probe_seconds=0.1, restore=restore)
    generation = await VllmUpstream("tiny", replicas).chat(ChatRequest([], prompt=PROMPT, max_tokens=5))
    assert [delta async for delta in generation]
    await replicas.drop(first, "it is gone")
    await until(lambda: not replicas.dead)
    assert tries == [(first, 4)] * 2
    await replicas.close()


@pytest.mark.usefixtures("rambler")
async def test_a_server_in_anothers_place_is_taken_back_after_a_moment_away(engine: VllmEngine) -> None:
    first, second = engine.replicas.urls
    replicas = Replicas([first], "tiny", policy_version=4)
    upstream = VllmUpstream("tiny", replicas)
    await upstream.check()
    async with Network(second) as network:
        replicas.replace([network.url])
        async for _ in await upstream.chat(ChatRequest([], prompt=PROMPT, max_tokens=1)):
            pass
        await until(lambda: all(each.born for each in replicas._serving.replicas))
        generation = await upstream.chat(ChatRequest([], prompt=PROMPT, max_tokens=1900))
        deltas = aiter(generation)
        await anext(deltas)
        network.cut()
        await until(lambda: bool(replicas.dead))
        network.up = True
        await until(lambda: not replicas.dead)
        await generation.aclose()
        await replicas.close()


async def test_more_choices_than_a_server_takes_at_once_are_all_answered(engine: VllmEngine) -> None:
    prompts = [[5 + i, *range(5, 105)] for i in range(400)]
    asked: dict[str, Any] = {"messages": [], "temperature": 2.0, "max_tokens": 10}
    replies = await asyncio.gather(*(ask(engine, **asked, prompt=prompt) for prompt in prompts))
    assert [reply.prompt_ids for reply in replies] == prompts
    assert all(reply.finish_reason for reply in replies)
    assert not engine.replicas.dead
