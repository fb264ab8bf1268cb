"""vLLM answers as the local engine does: same prompts, same greedy replies, same numbers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest
import torch
from transformers import AutoModelForCausalLM

pytest.importorskip("vllm")

from examples.sql.prompts import write_prompt
from lightning_core.backends.local import LocalBackend
from lightning_core.backends.serving.constraints import penalties
from lightning_core.backends.vllm.client import SOCKET
from lightning_core.backends.vllm.server import VllmEngine
from lightning_core.backends.weights.sources import tiny_folder
from lightning_core.dialects.upstream import ChatRequest, Constraint
from lightning_core.errors import ContextLengthError, UnsupportedError
from lightning_core.gateway.app import Gateway
from lightning_core.gateway.server import GatewayServer
from lightning_core.gateway.tokens import Tokens
from lightning_core.records.types import Demonstration, Rollout, Task
from lightning_core.stores.sqlite import MemoryStore
from tests.backends.serving import ask, ask_all, plain_logprobs, serving, user
from tests.backends.test_constraints import ADD, KINDS, PERSON, matches
from tests.vllm.weights import PROMPT, Servers, running

TOOL = {
    "type": "function",
    "function": {"name": "look", "description": "Look.", "parameters": {"type": "object", "properties": {}}},
}
SQL: Any = write_prompt(
    "CREATE TABLE boats (id INTEGER, name TEXT, speed REAL);", "How many boats have speed above 12?"
)
LONG: dict[str, Any] = {"messages": [], "prompt": PROMPT, "max_tokens": 400}
SHORT = {**LONG, "max_tokens": 60}


@pytest.fixture(scope="module")
def network() -> Any:
    torch.set_num_threads(1)
    return AutoModelForCausalLM.from_pretrained(tiny_folder(), dtype=torch.float32)


@pytest.fixture
async def local() -> AsyncIterator[LocalBackend]:
    async with serving(tiny_folder()) as backend:
        yield backend


@pytest.mark.parametrize(
    "prompt", [{"messages": SQL}, {"messages": user("hello"), "tools": [TOOL]}, {"prompt": "SELECT"}]
)
async def test_greedy_replies_are_the_same(
    engine: VllmEngine, local: LocalBackend, network: Any, prompt: dict[str, Any]
) -> None:
    asked = {"messages": [], "temperature": 0.0, "max_tokens": 60, "top_logprobs": 3, **prompt}
    (ours,), (theirs,) = await ask_all(local, **asked), await ask_all(engine, **asked)
    assert (theirs.prompt_ids, theirs.ids, theirs.text) == (ours.prompt_ids, ours.ids, ours.text)
    assert (theirs.finish_reason, theirs.tool_calls) == (ours.finish_reason, ours.tool_calls)
    assert theirs.logprobs == pytest.approx(plain_logprobs(network, ours.prompt_ids, ours.ids), abs=1e-3)
    assert [[i for i, _ in best] for best in theirs.best] == [[i for i, _ in best] for best in ours.best]
    ours_best, theirs_best = ([p for best in each.best for _, p in best] for each in (ours, theirs))
    assert theirs_best == pytest.approx(ours_best, abs=1e-3)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
async def test_logprobs_are_those_at_the_temperature(
    engine: VllmEngine, network: Any, temperature: float
) -> None:
    replies = await ask_all(engine, SQL, n=3, temperature=temperature, max_tokens=40)
    for reply in replies:
        plain = plain_logprobs(network, reply.prompt_ids, reply.ids, temperature)
        assert reply.logprobs == pytest.approx(plain, abs=1e-3)
    assert {reply.policy_version for reply in replies} == {engine.replicas.policy_version}


@pytest.mark.parametrize("kind", KINDS)
async def test_replies_are_held_to_a_form_and_have_the_logprobs_of_its_masks(
    engine: VllmEngine, network: Any, kind: str
) -> None:
    replies = await ask_all(engine, SQL, n=4, temperature=0.7, max_tokens=120, **KINDS[kind])
    ended = [reply for reply in replies if reply.finish_reason != "length"]
    assert ended or kind in ("grammar", "regex")
    assert [reply.text for reply in ended if not matches(kind, reply)] == []
    grammars = engine.upstream.grammars
    grammar = grammars.write(ChatRequest(SQL, **KINDS[kind]))
    assert grammar is not None
    for reply in replies:
        with torch.no_grad():
            logits = network(torch.tensor([reply.prompt_ids + reply.ids])).logits[0] / 0.7
        logits = logits[len(reply.prompt_ids) - 1 : -1]
        words = grammars.replay(grammar, reply.ids, "here")
        logits += torch.from_numpy(penalties(words, logits.shape[1]))
        masked = logits.log_softmax(-1)[torch.arange(len(reply.ids)), torch.tensor(reply.ids)]
        assert reply.logprobs == pytest.approx(masked.tolist(), abs=1e-3)
        assert any(p < -1e-3 for p in reply.logprobs)


async def test_beside_a_schema_a_reply_may_be_a_call_of_a_tool(engine: VllmEngine) -> None:
    asked: dict[str, Any] = {"constraint": Constraint(schema=PERSON), "tools": [ADD], "max_tokens": 99}
    replies = await ask_all(engine, user("hello"), n=32, temperature=2.0, **asked)
    ended = [reply for reply in replies if reply.finish_reason != "length"]
    assert 0 < sum(bool(reply.tool_calls) for reply in ended) < len(ended)
    assert all(matches("tools" if reply.tool_calls else "schema", reply) for reply in ended)


async def test_equal_seeds_give_equal_replies_and_choices_differ(rambler: Servers) -> None:
    once, again, other = [
        [reply.ids for reply in await ask_all(rambler, n=3, seed=seed, **SHORT)] for seed in (7, 7, 8)
    ]
    assert once == again != other
    assert len({tuple(ids) for ids in once}) == 3
    first, second = [(await ask(rambler, **LONG)).ids for _ in range(2)]  # without a seed of their own
    assert first != second


async def test_a_stop_text_ends_a_reply_as_it_does_locally(engine: VllmEngine, local: LocalBackend) -> None:
    asked: dict[str, Any] = {"messages": SQL, "temperature": 0.0, "max_tokens": 60}
    (whole,) = await ask_all(local, **asked)
    stop = whole.text[5:8]
    (ours,), (theirs,) = [await ask_all(each, stop=(stop,), **asked) for each in (local, engine)]
    assert (theirs.text, theirs.ids, theirs.finish_reason) == (ours.text, ours.ids, "stop")
    assert theirs.deltas[-1].stop == stop
    assert len(theirs.ids) < len(whole.ids)


async def test_the_first_token_comes_before_the_last_is_made(rambler: Servers) -> None:
    generation = await rambler.upstream.chat(ChatRequest(**{**LONG, "max_tokens": 1900}))
    deltas = aiter(generation)
    first = await anext(deltas)
    assert first.finish_reason is None
    assert sum(running(rambler.replicas).values()) == 1
    rest = [delta async for delta in deltas]
    assert rest[-1].finish_reason


async def test_a_reply_that_is_given_up_frees_the_server(rambler: Servers) -> None:
    generation = await rambler.upstream.chat(ChatRequest(**LONG, n=4))
    await anext(aiter(generation))
    await generation.aclose()
    while await requests(rambler):  # noqa: ASYNC110 - a server sends no events
        await asyncio.sleep(0.05)


async def metrics(socket: str) -> str:
    """A server's figures."""
    there = httpx.AsyncHTTPTransport(uds=socket)
    async with httpx.AsyncClient(transport=there, timeout=60) as web:
        return (await web.get("http://localhost/metrics")).text


async def requests(rambler: Servers) -> float:
    """Requests that the servers say are under way."""
    pages = [await metrics(url.removeprefix(SOCKET)) for url in rambler.replicas.urls]
    lines = [line for page in pages for line in page.splitlines()]
    return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:num_requests_running{"))


async def test_what_does_not_fit_is_refused_in_the_same_words(
    engine: VllmEngine, local: LocalBackend
) -> None:
    said = []
    for each in (local, engine):
        with pytest.raises(ContextLengthError) as refused:
            await each.upstream.chat(ChatRequest(user("hi"), prompt=[7] * 3000))
        said.append(str(refused.value))
    assert said[0] == said[1]


async def test_what_can_not_be_said_is_refused(engine: VllmEngine) -> None:
    with pytest.raises(UnsupportedError, match="image_url"):
        await ask(engine, [{"role": "user", "content": [{"type": "image_url"}]}])
    with pytest.raises(UnsupportedError, match="token id 99999"):
        await ask(engine, [], prompt=[99999])


async def test_a_demonstration_has_the_same_ids(engine: VllmEngine, local: LocalBackend) -> None:
    shown = Demonstration(messages=SQL, reply="SELECT name FROM boats")
    assert engine.upstream.encode(shown) == local.encode(shown)


@pytest.fixture
def tokens() -> Tokens:
    return Tokens(b"0123456789abcdef")


async def test_the_gateway_records_what_vllm_sampled(
    engine: VllmEngine, network: Any, tokens: Tokens
) -> None:
    store = MemoryStore()
    rollout = Rollout(id="r1", run_id="run", task=Task(input={"q": 1}), group_id="g", step=0)
    await store.enqueue([rollout])
    await store.lease("worker", 1, 60.0)
    async with (
        GatewayServer(Gateway(engine.upstream, store, tokens, agents=None)) as server,
        openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=tokens.issue(rollout, 1)) as client,
    ):
        stream = await client.chat.completions.create(model="tiny", messages=SQL, stream=True, max_tokens=30)
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])
    (call,) = (await store.get_calls(["r1"]))["r1"]
    (choice,) = call.choices
    assert choice.message["content"] == text
    assert call.policy_version == engine.replicas.policy_version
    assert call.prompt_ids
    assert choice.completion_ids
    plain = plain_logprobs(network, call.prompt_ids, choice.completion_ids)
    assert choice.logprobs == pytest.approx(plain, abs=1e-3)
