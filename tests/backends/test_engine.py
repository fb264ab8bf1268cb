"""The engine's laws, on real models in a real thread."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from lightning_core.algorithms.policy_gradient import GRPO
from lightning_core.backends.base import Batch
from lightning_core.backends.local.attention import AttentionForm, use_plans
from lightning_core.backends.local.backend import SWITCH_SECONDS
from lightning_core.backends.local.decoder import PAGE, LlamaDecoder, NetworkDecoder, make_decoder
from lightning_core.backends.local.engine import Engine, EngineOptions
from lightning_core.backends.local.memory import TokenRun
from lightning_core.backends.local.model import load_model
from lightning_core.backends.local.tuning import kv_shape
from lightning_core.backends.serving.completion import Completion, CompletionRequest, SamplingOptions
from lightning_core.dialects.upstream import Shaping
from lightning_core.errors import EngineError, GatewayError
from lightning_core.records.sequences import read_masks, write_masks
from tests.backends.models import make_network
from tests.backends.serving import ask, ask_all, plain_logprobs, sample_batch, serving, user


def load_plain(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def start_engine(folder: Path, **options: Any) -> Engine:
    """An engine that stops at no token."""
    model = load_model(folder, device="cpu")
    decoder = make_decoder(model.network, torch.float32, model.context)
    engine = Engine(decoder, kv_shape(model.network, torch.float32), frozenset(), EngineOptions(**options), 1)
    engine.start()
    return engine


async def read(completion: Completion) -> list[int]:
    while not completion.finished:
        await completion.request.wait()
    if completion.error is not None:
        raise completion.error
    return completion.ids


def submit(engine: Engine, prompt: list[int], tokens: int, **options: Any) -> Completion:
    completion = Completion(prompt, SamplingOptions(max_tokens=tokens, **options), CompletionRequest())
    engine.submit(completion)
    return completion


async def test_greedy_replies_equal_generate_token_by_token_with_mixed_lengths_and_reused_prefixes(
    folder: Path,
) -> None:
    network = load_plain(folder)
    texts = [
        "hi",
        "the lazy dog " * 9,
        "the lazy dog " * 9 + "jumps",
        "SELECT name " * 3,
        "the lazy dog " * 4,
    ]
    async with serving(folder, max_batch=4) as backend:
        for _ in range(2):
            replies = await asyncio.gather(*(ask(backend, t, max_tokens=24, temperature=0.0) for t in texts))
            for reply in replies:
                prompt = torch.tensor([reply.prompt_ids])
                wanted = network.generate(
                    prompt,
                    attention_mask=torch.ones_like(prompt),
                    do_sample=False,
                    max_new_tokens=24,
                    pad_token_id=0,
                )
                assert reply.ids == wanted[0, prompt.shape[1] :].tolist()
        assert backend.sampler.hit_tokens > 100


async def test_sampled_logprobs_equal_a_plain_forward_at_the_temperature(folder: Path) -> None:
    network = load_plain(folder)
    async with serving(folder) as backend:
        for temperature in (1.0, 0.7, 1.8):
            asked = [ask(backend, f"dog {i}", max_tokens=20, temperature=temperature) for i in range(6)]
            for reply in await asyncio.gather(*asked):
                wanted = plain_logprobs(network, reply.prompt_ids, reply.ids, temperature)
                assert reply.logprobs == pytest.approx(wanted, abs=1e-4)


def plain_logits(network: Any, prompt: list[int], reply: list[int]) -> torch.Tensor:
    """(N, V) from which each id of a reply was sampled, by transformers' own forward pass."""
    with torch.no_grad():
        logits: torch.Tensor = network(torch.tensor([prompt + reply])).logits[0]
    return logits[len(prompt) - 1 : -1]


def expected_to_be_left(logits: torch.Tensor, top_p: float, top_k: int, min_p: float) -> set[int]:
    """Token by token, as the options are defined."""
    shares = sorted(((p, i) for i, p in enumerate(logits.softmax(-1).tolist())), reverse=True)
    shares = [each for each in shares[: top_k or None] if each[0] >= min_p * shares[0][0]]
    whole, left, so_far = sum(p for p, _ in shares), set(), 0.0
    for p, i in shares:
        if so_far < top_p * whole or top_p == 1.0:
            left.add(i)
        so_far += p
    return left


@pytest.mark.parametrize(
    ("top_p", "top_k", "min_p", "temperature"),
    [(0.3, 0, 0.0, 1.0), (1.0, 5, 0.0, 1.0), (1.0, 0, 0.2, 0.7), (0.7, 20, 0.01, 1.5), (1.0, 1, 0.0, 1.0)],
)
async def test_a_reply_is_sampled_among_the_tokens_that_are_left_and_so_are_its_logprobs(
    qwen: Path, top_p: float, top_k: int, min_p: float, temperature: float
) -> None:
    network, shaping = load_plain(qwen), Shaping(top_k=top_k, min_p=min_p)
    options = {"top_p": top_p, "shaping": shaping, "temperature": temperature, "trained": True}
    async with serving(qwen) as backend:
        beside = [ask(backend, "fox", max_tokens=20, seed=3) for _ in range(2)]
        reply, *plain = await asyncio.gather(ask(backend, "fox", max_tokens=20, **options), *beside)
        assert plain[0].ids == (await ask(backend, "fox", max_tokens=20, seed=3)).ids
        untrained = await ask(backend, "fox", max_tokens=20, **{**options, "trained": False})
    assert plain[0].kept == untrained.kept == []
    logits = plain_logits(network, reply.prompt_ids, reply.ids) / temperature
    masks = read_masks(write_masks(reply.kept), logits.shape[-1])
    for own, mask, token, logprob in zip(logits, masks, reply.ids, reply.logprobs, strict=True):
        left = {i for i in range(len(own)) if mask[i // 32] >> (i % 32) & 1}
        assert left == expected_to_be_left(own, top_p, top_k, min_p)
        among = torch.tensor(sorted(left))
        assert logprob == pytest.approx(float(own[token] - own[among].logsumexp(-1)), abs=1e-4)


@pytest.mark.parametrize(
    "shaping",
    [
        Shaping(presence=1.5),
        Shaping(frequency=-0.7),
        Shaping(repetition=1.8),
        Shaping(bias=((7, 3.0), (9, -100.0))),
        Shaping(presence=0.4, frequency=0.3, repetition=0.8, bias=((5, 1.0),)),
    ],
)
async def test_penalties_and_biases_change_the_logits_before_the_temperature(
    qwen: Path, shaping: Shaping
) -> None:
    network = load_plain(qwen)
    async with serving(qwen) as backend:
        reply = await ask(backend, "fox", max_tokens=30, shaping=shaping, temperature=0.8)
    logits = plain_logits(network, reply.prompt_ids, reply.ids)
    for place, (own, token, logprob) in enumerate(zip(logits, reply.ids, reply.logprobs, strict=True)):
        changed = own.tolist()
        for each, added in shaping.bias:
            changed[each] += added
        for each in {*reply.prompt_ids, *reply.ids[:place]}:
            changed[each] *= 1 / shaping.repetition if changed[each] > 0 else shaping.repetition
        for each in reply.ids[:place]:
            changed[each] -= shaping.frequency
        for each in set(reply.ids[:place]):
            changed[each] -= shaping.presence
        expected = (torch.tensor(changed) / 0.8).log_softmax(-1)[token]
        assert logprob == pytest.approx(float(expected), abs=1e-4)


async def test_the_best_alternatives_are_ordered_and_hold_the_greedy_token(qwen: Path) -> None:
    async with serving(qwen) as backend:
        reply = await ask(backend, "fox", max_tokens=5, temperature=0.0, top_logprobs=3)
        for token, logprob, best in zip(reply.ids, reply.logprobs, reply.best, strict=True):
            assert len(best) == 3
            assert best[0] == (token, pytest.approx(logprob, abs=1e-5))
            assert [p for _, p in best] == sorted((p for _, p in best), reverse=True)


async def test_a_seed_gives_the_same_reply_alone_and_in_company(qwen: Path) -> None:
    async with serving(qwen) as backend:
        alone = await ask(backend, "fox", max_tokens=16, seed=7)
        company = [ask(backend, f"dog {i}", max_tokens=16) for i in range(9)]
        again, other, *_ = await asyncio.gather(
            ask(backend, "fox", max_tokens=16, seed=7), ask(backend, "fox", max_tokens=16, seed=8), *company
        )
        assert again.ids == alone.ids
        assert other.ids != alone.ids


async def test_choices_of_one_request_differ_and_each_is_complete(qwen: Path) -> None:
    async with serving(qwen) as backend:
        replies = await ask_all(backend, user("fox"), max_tokens=12, n=5, seed=1)
        assert all(r.finish_reason in ("stop", "length") for r in replies)
        assert len({tuple(r.ids) for r in replies}) > 1


@pytest.mark.parametrize("kind", ["qwen3", "llama"])
@pytest.mark.parametrize("vocabulary", [300, PAGE], ids=["", "rows as long as a page"])
def test_the_fused_decoder_equals_the_network(kind: str, vocabulary: int) -> None:
    network, other = (make_network(kind, vocabulary, seed=seed).eval() for seed in (0, 1))
    use_plans(network)
    use_plans(other)
    tokens = torch.tensor([5, 9, 20, 7, 250, 33])
    keep = torch.tensor([2, 5])
    results = []
    fused = LlamaDecoder(other, torch.float32, 64)
    fused.refresh(network.state_dict())
    for decoder in (LlamaDecoder(network, torch.float32, 64), fused, NetworkDecoder(network, torch.float32)):
        plan = _Causal()
        with torch.no_grad():
            results.append(decoder.logits(tokens, torch.arange(6), plan, keep))
    assert torch.equal(results[0], results[1])
    torch.testing.assert_close(results[0], results[2], atol=1e-4, rtol=1e-4)


class _Causal:
    """Plain causal attention over one sequence."""

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, form: AttentionForm
    ) -> torch.Tensor:
        q, k, v = (x.transpose(0, 1)[None] for x in (query, key, value))
        out = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=form.scale, enable_gqa=True
        )
        return out[0].transpose(0, 1)


async def test_three_hundred_requests_are_served_in_order_of_arrival(qwen: Path) -> None:
    engine = start_engine(qwen, max_batch=16, prefill_tokens=64)
    order: list[int] = []

    async def one(index: int) -> None:
        await read(submit(engine, [5 + index % 7, 9, 11], 6, seed=str(index)))
        order.append(index)

    await asyncio.gather(*(one(i) for i in range(300)))
    place = {index: at for at, index in enumerate(order)}
    assert len(order) == 300
    assert all(place[i] < place[j] for i in range(300) for j in range(i + 32, 300))
    engine.close()


async def test_a_long_prompt_does_not_stop_the_replies_under_way(qwen: Path) -> None:
    engine = start_engine(qwen, prefill_tokens=16)
    await asyncio.wrap_future(engine.hold())
    short = submit(engine, [5, 6, 7], 20)
    long = submit(engine, [8 + i % 50 for i in range(400)], 2)  # 26 steps of prefill
    engine.release()
    assert len(await read(long)) == 2
    assert len(await read(short)) == 20
    assert engine.steps == 27  # and not 20 more: the short reply was made meanwhile
    engine.close()


async def test_a_failing_step_ends_its_requests_with_the_error_and_the_next_are_served(qwen: Path) -> None:
    engine = start_engine(qwen)
    with pytest.raises(IndexError):
        await read(submit(engine, [10**6], 3))
    assert len(await read(submit(engine, [5], 3))) == 3
    engine.close()


async def test_a_prompt_over_several_steps_gives_what_it_gives_in_one(qwen: Path) -> None:
    prompt = [8 + i * 7 % 90 for i in range(200)]
    replies = []
    for budget in (512, 48, 7):
        engine = start_engine(qwen, prefill_tokens=budget)
        company = [submit(engine, [9, 8 + i], 30, seed=str(i)) for i in range(5)]
        replies.append(await read(submit(engine, prompt, 20, temperature=0.0)))
        for completion in company:
            await read(completion)
        engine.close()
    assert replies[0] == replies[1] == replies[2]


async def test_a_cancelled_request_frees_its_row_for_the_next(qwen: Path) -> None:
    async with serving(qwen, max_batch=1) as backend:
        generation = await backend.upstream.chat(_request("first", max_tokens=400))
        async for _ in generation:
            break
        waiting = await backend.upstream.chat(_request("never read", max_tokens=400))
        await waiting.aclose()
        await generation.aclose()
        reply = await ask(backend, "second", max_tokens=4)
        assert len(reply.ids) <= 4
        assert backend.sampler.running == backend.sampler.waiting == 0


def _request(text: str, **options: Any) -> Any:
    from lightning_core.dialects.upstream import ChatRequest

    return ChatRequest(user(text), **options)


async def test_equal_prompts_of_a_group_are_computed_once(qwen: Path) -> None:
    engine = start_engine(qwen)
    prompt = [8 + i % 40 for i in range(97)]
    await asyncio.gather(*(read(submit(engine, prompt, 3, seed=str(i))) for i in range(8)))
    assert engine.prefill_tokens == 97 + 7  # the others find 96 tokens in whole blocks
    engine.close()


async def test_the_prefix_store_stays_within_its_memory_and_still_gives_right_replies(qwen: Path) -> None:
    shape = kv_shape(load_model(qwen, device="cpu").network, torch.float32)
    small, plain = (start_engine(qwen, prefix_bytes=b) for b in (5 * 16 * shape.token_bytes, 0))
    prompts = [[5 + p, *(8 + i % (20 + p) for i in range(60))] for p in range(6)]
    for _ in range(2):
        for prompt in prompts:
            wanted = await read(submit(plain, prompt, 20, temperature=0.0))
            assert await read(submit(small, prompt, 20, temperature=0.0)) == wanted
    assert plain.hit_tokens == 0
    small.close()
    plain.close()


async def test_rows_grow_past_their_first_capacity_without_losing_a_token(qwen: Path) -> None:
    network = load_plain(qwen)
    engine = start_engine(qwen)
    prompt = [5, 9, 12]
    ids = await read(submit(engine, prompt, 400, temperature=0.0))
    wanted = network.generate(
        torch.tensor([prompt]), attention_mask=torch.ones(1, 3), do_sample=False, max_new_tokens=400,
        eos_token_id=-1, pad_token_id=0,
    )  # fmt: skip
    assert ids == wanted[0, 3:].tolist()
    engine.close()


@pytest.mark.parametrize("prefix_bytes", [0, 1 << 24])
async def test_long_replies_leave_fewer_rows_within_the_memory_and_all_are_served(
    qwen: Path, prefix_bytes: int
) -> None:
    shape = kv_shape(load_model(qwen, device="cpu").network, torch.float32)
    limit = 4 * 256 * shape.token_bytes
    engine = start_engine(qwen, slot_bytes=limit, prefix_bytes=prefix_bytes)
    replies = [submit(engine, [5, 8 + i], 300, seed=str(i)) for i in range(6)]
    alone = start_engine(qwen)
    for i, reply in enumerate(replies):
        assert await read(reply) == await read(submit(alone, [5, 8 + i], 300, seed=str(i)))
    assert engine.most_running == 4
    assert engine._rows.memory.slots.capacity > 256
    assert engine._rows.memory.slots.memory.nbytes <= limit
    engine.close()
    alone.close()


class _Watched(list[int]):
    """A prompt that counts how often it is read."""

    reads = 0

    def __getitem__(self, index: Any) -> Any:
        self.reads += 1
        return super().__getitem__(index)


async def test_requests_that_wait_for_an_update_cost_the_replies_before_it_nothing(qwen: Path) -> None:
    engine = start_engine(qwen)
    before = submit(engine, [5, 6], 300)
    while not before.ids:
        await before.request.wait()
    idle = asyncio.wrap_future(engine.hold())
    prompt = _Watched([8 + i % 40 for i in range(50)])
    after = submit(engine, prompt, 3)
    await idle
    assert len(before.ids) == 300
    assert prompt.reads == 0
    engine.release()
    assert len(await read(after)) == 3
    assert prompt.reads > 0
    engine.close()


async def test_an_update_waits_for_replies_that_have_grown_out_of_the_memory(qwen: Path) -> None:
    shape = kv_shape(load_model(qwen, device="cpu").network, torch.float32)
    engine = start_engine(qwen, slot_bytes=4 * 256 * shape.token_bytes)
    replies = [submit(engine, [5, 8 + i], 300) for i in range(4)]
    while not all(reply.ids for reply in replies):
        await replies[-1].request.wait()
    await asyncio.wrap_future(engine.hold())
    assert [len(reply.ids) for reply in replies] == [300] * 4
    engine.close()


async def test_short_replies_after_a_long_one_are_as_many_as_before(qwen: Path) -> None:
    shape = kv_shape(load_model(qwen, device="cpu").network, torch.float32)
    engine = start_engine(qwen, slot_bytes=8 * 256 * shape.token_bytes)
    assert len(await read(submit(engine, [8 + i % 40 for i in range(500)], 3))) == 3
    replies = [submit(engine, [5, 8 + i], 40, seed=str(i)) for i in range(8)]
    assert [len(await read(reply)) for reply in replies] == [40] * 8
    assert engine.most_running == 8
    engine.close()


async def test_a_long_prompt_waits_until_the_memory_has_room_for_it(qwen: Path) -> None:
    shape = kv_shape(load_model(qwen, device="cpu").network, torch.float32)
    limit = 4 * 256 * shape.token_bytes
    engine = start_engine(qwen, slot_bytes=limit)
    await asyncio.wrap_future(engine.hold())
    replies = [submit(engine, [5, 8 + i], 20) for i in range(3)]
    replies.append(submit(engine, [8 + i % 40 for i in range(450)], 3))
    engine.release()
    for reply in replies:
        await read(reply)
    assert engine.most_running == 3
    assert engine._rows.memory.slots.memory.nbytes <= limit
    engine.close()


async def test_bfloat16_serves_and_trains_near_enough(qwen: Path) -> None:
    async with serving(qwen, dtype="bfloat16") as backend:
        metrics = await backend.update(Batch(0, await sample_batch(backend)), GRPO())
        assert 1e-4 < metrics["logprob_gap_mean"] < 0.2


async def test_readers_on_several_event_loops_are_all_served(qwen: Path) -> None:
    async with serving(qwen) as backend:
        lengths: list[int] = []

        def other_loop() -> None:
            lengths.append(len(asyncio.run(ask(backend, "hello", max_tokens=5)).ids))

        threads = [threading.Thread(target=other_loop) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            await asyncio.to_thread(thread.join)
        assert len(lengths) == 4


async def test_a_closed_engine_ends_all_that_waits_for_it_and_refuses_new_requests(
    qwen: Path,
) -> None:
    engine, steps = start_engine(qwen), threading.Semaphore(3)
    step = engine._step

    def allowed_step() -> None:
        """One of those that the test allows, so that the reply is under way when the engine is closed."""
        steps.acquire()
        step()

    engine._step = allowed_step  # type: ignore[method-assign]
    completion = submit(engine, [5, 6], 500)
    while not completion.ids:
        await completion.request.wait()
    idle = engine.hold()
    closing = asyncio.create_task(asyncio.to_thread(engine.close))
    while not closing.done():
        steps.release()
        await asyncio.sleep(0.01)
    await closing
    with pytest.raises(GatewayError, match="closed"):
        await read(completion)
    for future in (idle, engine.hold(), engine.call(lambda: None)):
        assert isinstance(future.exception(timeout=0), GatewayError)
    with pytest.raises(GatewayError, match="not running"):
        submit(engine, [5, 6], 5)


async def test_the_interpreters_switch_interval_is_the_engines_while_it_serves_and_no_longer(
    qwen: Path,
) -> None:
    before = sys.getswitchinterval()
    async with serving(qwen):
        assert sys.getswitchinterval() == pytest.approx(SWITCH_SECONDS)
    assert sys.getswitchinterval() == pytest.approx(before)


def make_fail(engine: Engine, *, raises: int = -1, overflows: int = -1) -> None:
    """Some tokens are too much from now on; a step that raises has already changed its rows."""
    memory = engine._rows.memory
    run = memory.logits

    def logits(lengths: list[int], runs: list[TokenRun], tokens: list[int], keep: list[int]) -> torch.Tensor:
        found = run(lengths, runs, tokens, keep)
        if raises in tokens:
            raise RuntimeError(f"out of memory at token {raises}")
        broken = torch.tensor([tokens[place] == overflows for place in keep], dtype=torch.bool)
        return found.masked_fill(broken[:, None], float("nan"))

    memory.logits = logits  # type: ignore[method-assign]


@pytest.mark.parametrize("where", ["prompt", "end of a prompt", "reply"])
@pytest.mark.parametrize("how", ["raises", "overflows"])
async def test_a_row_that_fails_ends_alone_and_the_others_get_what_they_get_without_it(
    qwen: Path, how: str, where: str
) -> None:
    bad = 333
    prompts = [[5 + i, *(8 + j % (9 + i) for j in range(3 + 13 * i))] for i in range(8)]
    plain = start_engine(qwen, prefix_bytes=0)
    wanted = [await read(submit(plain, p, 30, seed=str(i))) for i, p in enumerate(prompts)]
    greedy = await read(submit(plain, [5, 6, 7], 40, temperature=0.0))
    plain.close()
    assert not any(bad in ids for ids in wanted)
    doomed = {
        "prompt": [*[9] * 20, bad, *[9] * 100],  # more than one step of prefill
        "end of a prompt": [*[9] * 20, bad],
        "reply": [5, 6, 7],  # it comes to a token that it writes itself
    }[where]
    others = {i for ids in [*wanted, *prompts, doomed] for i in ids}
    failing = next(i for i in greedy[:-1] if i not in others) if where == "reply" else bad
    if (how, where) == ("overflows", "prompt"):
        doomed = [*doomed, bad]  # what is not wanted of a prompt's logits does no harm
    engine = start_engine(qwen, prefill_tokens=64)
    make_fail(engine, **{how: failing})
    await asyncio.wrap_future(engine.hold())
    companions = [submit(engine, p, 30, seed=str(i)) for i, p in enumerate(prompts[:4])]
    fails = [submit(engine, doomed, 40, temperature=0.0) for _ in range(2)]
    companions += [submit(engine, p, 30, seed=str(i)) for i, p in enumerate(prompts[4:], 4)]
    engine.release()
    for completion in fails:
        with pytest.raises(
            (EngineError, RuntimeError), match="not finite" if how == "overflows" else "memory"
        ):
            await read(completion)
    assert [await read(completion) for completion in companions] == wanted
    again = [submit(engine, p, 30, seed=str(i)) for i, p in enumerate(prompts)]
    assert [await read(completion) for completion in again] == wanted
    async with asyncio.timeout(30):
        while engine.running or engine.waiting:  # noqa: ASYNC110  its thread counts after the last token
            await asyncio.sleep(0.01)
    engine.close()


async def test_a_row_with_numbers_that_are_not_finite_fails_once_and_is_clean_for_the_next(
    qwen: Path,
) -> None:
    engine = start_engine(qwen, prefix_bytes=0)
    prompts = [[8 + i % 40 for i in range(90)], [5, 6]]
    wanted = [await read(submit(engine, prompt, 60, temperature=0.0)) for prompt in prompts]
    await asyncio.wrap_future(engine.call(lambda: engine._rows.memory.slots.memory.fill_(float("nan"))))
    for poisoned in (True, False):
        await asyncio.wrap_future(engine.hold())
        long, short = (submit(engine, prompt, 60, temperature=0.0) for prompt in prompts)
        engine.release()
        assert await read(long) == wanted[0]
        if poisoned:  # as far as the longest row goes, all of them are read
            with pytest.raises(EngineError, match="not finite"):
                await read(short)
        else:
            assert await read(short) == wanted[1]
    engine.close()


async def test_a_prompt_that_there_is_no_memory_for_ends_alone(qwen: Path) -> None:
    engine = start_engine(qwen)
    companions = [submit(engine, [5, 6 + i], 200, seed=str(i)) for i in range(4)]
    while not companions[-1].ids:
        await companions[-1].request.wait()
    huge: Any = range(2**50)  # as long as no memory is
    with pytest.raises(RuntimeError):
        await read(submit(engine, huge, 3))
    assert [len(await read(completion)) for completion in companions] == [200] * 4
    assert len(await read(submit(engine, [5, 6], 300))) == 300
    engine.close()


async def test_those_in_line_are_served_after_a_step_that_failed(qwen: Path) -> None:
    engine = start_engine(qwen, max_batch=1)
    await asyncio.wrap_future(engine.hold())
    bad, good = submit(engine, [10**6], 3), submit(engine, [5], 3)
    engine.release()
    with pytest.raises(IndexError):
        await read(bad)
    assert len(await read(good)) == 3
    engine.close()
