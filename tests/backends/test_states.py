"""Networks that keep state outside attention: sampled and trained as transformers runs them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import openai
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    PreTrainedModel,
    RwkvConfig,
    RwkvForCausalLM,
    StableLmConfig,
    StableLmForCausalLM,
)

import lightning_core as lightning
from lightning_core.algorithms.policy_gradient import GRPO, PPO
from lightning_core.backends.base import Batch
from lightning_core.backends.local.cache import Shape
from lightning_core.backends.local.caches import measure_traits
from lightning_core.backends.local.decoder import StateDecoder
from lightning_core.backends.local.engine import Engine, EngineOptions
from lightning_core.backends.local.packing import (
    SequencePlan,
    entry_logprobs,
    kept_bytes,
    make_batches,
    make_plan,
    recompute_layers,
    to_tensors,
)
from lightning_core.backends.serving.completion import Completion
from lightning_core.backends.settings import LoraOptions
from lightning_core.backends.weights.sources import load_tokenizer, tiny_folder
from lightning_core.dialects.upstream import ChatRequest, Constraint, Shaping
from lightning_core.errors import UnsupportedError
from lightning_core.experience.trajectories import make_packs
from lightning_core.records.sequences import write_masks
from lightning_core.records.types import Trajectory, Transition
from tests.backends.models import STATES, make_state_network, make_tokenizer
from tests.backends.serving import as_transition, ask, plain_logprobs, sample_batch, serving, user
from tests.backends.test_critic import with_targets
from tests.backends.test_engine import make_fail, read, submit
from tests.backends.test_update import (
    Reinforce,
    apart,
    by_transformers,
    gradients,
    interleaved,
    make_optimizer,
)
from tests.trainer.watching import records

DELTA = ("qwen3_5_text", "qwen3_5_moe_text", "qwen3_next")
"""transformers' pass over a sequence is off by 1e-4 nats from float64 here, for weights this large; its step
from token to token is off by 1e-5."""
PROMPTS = [[5 + (7 * i * i + 11 * n) % 290 for i in range(n)] for n in (33, 1, 2, 18, 33, 70)]


@pytest.fixture(params=STATES)
def network(request: pytest.FixtureRequest) -> PreTrainedModel:
    """A small random network of each family in turn, weights x 8."""
    return make_state_network(request.param, 300)


def start(network: PreTrainedModel, **options: int) -> Engine:
    """An engine that stops at no token."""
    shape = Shape(layers=4, heads=2, size=16, dtype=torch.float32, device=torch.device("cpu"))
    decoder = StateDecoder(network, torch.float32)
    engine = Engine(decoder, shape, frozenset(), EngineOptions(**options), 1)
    engine.start()
    return engine


async def play(engine: Engine) -> list[Completion]:
    """Replies of unlike length to prompts of unlike length, two of each, and next turns of some."""
    asked = [submit(engine, p, 5 + 3 * i, seed=f"{i}") for i, p in enumerate([*PROMPTS, *PROMPTS])]
    for reply in asked:
        await read(reply)
    turns = [submit(engine, [*r.prompt_ids, *r.ids, 9, 8, 7], 6) for r in asked[:4]]
    for reply in turns:
        await read(reply)
    return [*asked, *turns]


def trained_logprobs(network: PreTrainedModel, replies: list[Completion]) -> list[torch.Tensor]:
    """Returns the log-probabilities of each reply, from a training pass over all of them."""
    batch = tuple(
        Transition("r", f"{i:02}", 0, "", True, r.prompt_ids, r.ids, r.logprobs, 0, advantage=1.0)
        for i, r in enumerate(replies)
    )
    packs = make_packs([Trajectory("r", "g", "t", 0.0, batch)], {t.key: 1.0 for t in batch}, pack_tokens=256)
    found: dict[str, torch.Tensor] = {}
    for pack in packs:
        tensors = to_tensors(pack, network)
        logprobs = entry_logprobs(network, tensors)
        found.update((key[1], logprobs[tensors.sequences == i]) for i, key in enumerate(pack.keys))
    return [found[key] for key in sorted(found)]


async def test_engine_and_training_give_the_log_probabilities_of_the_plain_network(
    network: PreTrainedModel,
) -> None:
    engine = start(network, prefill_tokens=48, max_batch=6)
    replies = await play(engine)
    engine.close()
    with torch.no_grad():
        trained = trained_logprobs(network, replies)
    network.set_attn_implementation("eager")
    for reply, own in zip(replies, trained, strict=True):
        wanted = plain_logprobs(network, reply.prompt_ids, reply.ids)
        allowed = 4e-4 if network.config.model_type in DELTA else 2e-5
        assert reply.logprobs == pytest.approx(wanted, abs=allowed)
        assert own.tolist() == pytest.approx(wanted, abs=2e-5)


@pytest.mark.parametrize("family", ["qwen3_5_text", "minimax"])  # padded, and rows of one length alone
async def test_a_row_gives_what_it_gives_alone_whoever_enters_and_leaves(family: str) -> None:
    network = make_state_network(family, 300)
    assert measure_traits(network).pads == (family != "minimax")
    engine = start(network, prefill_tokens=48)
    prompt = PROMPTS[3]
    alone = await read(submit(engine, prompt, 30, temperature=0.0))
    first = submit(engine, prompt, 30, temperature=0.0)
    company = [submit(engine, p, 3 + 2 * i, seed="x") for i, p in enumerate(PROMPTS)]
    cancelled = submit(engine, PROMPTS[0], 300)
    second = submit(engine, prompt, 30, temperature=0.0)
    while not cancelled.ids:
        await cancelled.request.wait()
    cancelled.cancel()
    company += [submit(engine, p, 4, seed="y") for p in PROMPTS]
    for reply in company:
        await read(reply)
    assert await read(first) == await read(second) == alone
    assert engine.running == 0
    engine.close()


@pytest.mark.parametrize("family", ["qwen3_5_text", "jamba"])  # one goes on from a state, one does not
async def test_equal_prompts_are_computed_once_and_a_next_turn_goes_on_from_the_last(family: str) -> None:
    network = make_state_network(family, 300)
    goes_on = measure_traits(network).continues
    engine = start(network)
    prompt = PROMPTS[-1]
    await asyncio.gather(*(read(submit(engine, prompt, 3, seed=str(i))) for i in range(8)))
    assert engine.prefill_tokens == len(prompt) + 7
    before = engine.prefill_tokens
    first = submit(engine, [4, 8, 15, 16, 23], 20)
    await read(first)
    await read(submit(engine, [*first.prompt_ids, *first.ids, 42], 1))
    assert engine.prefill_tokens - before == 5 + (2 if goes_on else 26)
    engine.close()


async def test_states_stay_within_their_memory_and_replies_are_right_all_the_same() -> None:
    network = make_state_network("qwen3_5_text", 300)
    traits = measure_traits(network)
    room = 3 * (traits.row_bytes + 80 * traits.token_bytes)
    engine, plain = start(network, slot_bytes=room, prefix_bytes=room), start(network, prefix_bytes=0)
    for _ in range(2):
        for small, whole in zip(await play(engine), await play(plain), strict=True):
            assert small.ids == whole.ids
    assert engine.most_running < 6 < plain.most_running
    assert engine.hit_tokens > plain.hit_tokens == 0
    for each in (engine, plain):
        each.close()


@pytest.mark.parametrize("where", ["prompt", "reply"])
async def test_a_row_that_fails_ends_alone_though_the_step_had_changed_every_state(where: str) -> None:
    network = make_state_network("qwen3_5_text", 300)
    plain = start(network, prefix_bytes=0)
    wanted = [await read(submit(plain, p, 30, seed=str(i))) for i, p in enumerate(PROMPTS)]
    greedy = await read(submit(plain, [5, 6, 7], 40, temperature=0.0))
    plain.close()
    others = {i for ids in [*wanted, *PROMPTS, [5, 6, 7]] for i in ids}
    failing = 299 if where == "prompt" else next(i for i in greedy[:-1] if i not in others)
    assert failing not in others
    engine = start(network, prefill_tokens=64)
    make_fail(engine, raises=failing)
    doomed = submit(engine, [5, 299, 7] if where == "prompt" else [5, 6, 7], 40, temperature=0.0)
    replies = [submit(engine, p, 30, seed=str(i)) for i, p in enumerate(PROMPTS)]
    with pytest.raises(RuntimeError, match="out of memory"):
        await read(doomed)
    assert [await read(reply) for reply in replies] == wanted
    engine.close()


# training -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("family", "more"),
    [
        ("qwen3_5_text", {}),  # linear attention
        ("lfm2", {}),  # convolution
        ("bamba", {}),  # state space
        ("falcon_h1", {"lm_head_multiplier": 3.0}),  # and logits that are no plain product
    ],
)
@pytest.mark.parametrize("logits_bytes", [1 << 26, 1 << 14])
def test_gradients_are_those_of_plain_passes_over_each_sequence(
    family: str, more: dict[str, float], logits_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightning_core.backends.local.packing.LOGITS_BYTES", logits_bytes)
    make_state_network(family, 300, scale=4.0, **more).save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    batch, algorithm = interleaved(5), Reinforce()
    loss, wanted = by_transformers(tmp_path, batch, algorithm)
    policy, optimizer = make_optimizer(tmp_path, pack_tokens=200)
    packs = optimizer.packs(batch, algorithm.weigh(batch), {})
    for recompute in (False, True):
        policy.must_recompute = lambda plan, own=recompute, **_: own  # type: ignore[method-assign]
        metrics = optimizer.accumulate(packs, algorithm)
        assert metrics["loss"] == pytest.approx(loss, abs=1e-5)
        assert apart(gradients(policy), wanted) < 1e-4


def test_branches_become_sequences_and_a_pass_takes_those_of_like_length_together() -> None:
    lengths = [7, 100, 8, 95, 9, 3000, 2]
    batches = make_batches(lengths)
    assert sorted(place for batch in batches for place in batch) == list(range(7))
    assert [sorted(lengths[place] for place in batch) for batch in batches] == [
        [2],
        [7, 8, 9],
        [95, 100],
        [3000],
    ]


def test_a_pack_counts_what_branches_share_for_each_and_a_turn_that_goes_on_once() -> None:
    prompt = list(range(5, 25))
    replies = [[30 + 5 * i + j for j in range(5)] for i in range(4)]
    turns = [(prompt, reply) for reply in replies] + [([*prompt, *replies[0], 9], [50, 51])]
    batch = tuple(
        Transition("r", str(i), 0, "", True, begun, reply, [-1.0] * len(reply), 0, advantage=1.0)
        for i, (begun, reply) in enumerate(turns)
    )
    given = ([Trajectory("r", "g", "t", 0.0, batch)], {t.key: 1.0 for t in batch})
    (whole,) = make_packs(*given, pack_tokens=200, branches=False)
    assert whole.passed == 3 * 24 + 27 == SequencePlan(torch.from_numpy(whole.ends)).tokens - 9  # padding
    parts = make_packs(*given, pack_tokens=60, branches=False)
    assert [part.passed for part in parts] == [27 + 24, 24 + 24]
    (merged,) = make_packs(*given, pack_tokens=60)
    assert merged.passed == len(merged.tokens) == 20 + 4 * 4 + 3


def test_what_layers_with_state_keep_for_the_gradient_is_measured() -> None:
    network = make_state_network("falcon_h1", 300).requires_grad_(True)
    places = torch.arange(64)
    plan = make_plan(network, torch.full_like(places, 64))
    kept = [
        kept_bytes(lambda: plan.hidden(network.model, places, places, places), network)
        for on in (False, True)
        if recompute_layers(network, on) is None
    ]
    assert kept[0] > 20 * kept[1] > 0


@pytest.mark.parametrize("lora", [None, LoraOptions(rank=4, targets="all-linear")])
async def test_an_update_trains_what_was_sampled_and_publishes_it(
    qwen35: Path, tmp_path: Path, lora: LoraOptions | None
) -> None:
    async with serving(qwen35, lora=lora, learning_rate=1e-2) as backend:
        batch = await sample_batch(backend)
        metrics = await backend.update(Batch(0, batch), GRPO(kl=0.1))
        assert metrics["logprob_gap_max"] < 1e-4
        assert metrics["kl_reference"] == pytest.approx(0.0, abs=1e-6)
        flying = asyncio.create_task(ask(backend, "hello", max_tokens=40))
        await asyncio.sleep(0.05)
        assert await backend.publish() == 1
        await flying
        await backend.export(tmp_path / "policy")
        network = AutoModelForCausalLM.from_pretrained(tmp_path / "policy", dtype=torch.float32).eval()
        reply = await ask(backend, "hello", max_tokens=8)
        assert reply.policy_version == 1
        wanted = plain_logprobs(network, reply.prompt_ids, reply.ids)
        assert reply.logprobs == pytest.approx(wanted, abs=1e-4)
        again = await backend.update(Batch(1, await sample_batch(backend)), GRPO())
        assert again["logprob_gap_max"] < 1e-4


async def test_a_critic_learns_what_states_are_worth(qwen35: Path) -> None:
    async with serving(qwen35) as backend:
        batch = with_targets(await sample_batch(backend))
        assert set((await backend.values(batch)).values()) == {0.0}
        losses = [(await backend.update(Batch(i, batch), PPO()))["value_loss"] for i in range(8)]
        assert losses[-1] < losses[0] / 2


async def test_replies_held_to_a_grammar_are_trained_under_it(qwen35: Path) -> None:
    async with serving(qwen35) as backend:
        request = ChatRequest(user("dog"), constraint=Constraint(choice=("yes", "no")), max_tokens=8)
        grammar = backend.upstream.grammars.write(request)
        batch = []
        for i in range(4):
            reply = await ask(backend, "dog", constraint=request.constraint, max_tokens=8)
            assert reply.text in ("yes", "no")
            own = as_transition(reply, f"r{i}", "c", advantage=1.0 - 2 * (i % 2), grammar=grammar)
            batch.append(Trajectory(f"r{i}", "g", "t", 0.0, (own,)))
        metrics = await backend.update(Batch(0, tuple(batch)), GRPO())
        assert metrics["logprob_gap_max"] < 1e-4


async def test_replies_whose_sampling_cut_tokens_off_are_trained_among_what_was_left(qwen35: Path) -> None:
    asked = {"max_tokens": 12, "trained": True, "temperature": 0.8}
    async with serving(qwen35) as backend:
        ways = ({"top_p": 0.7}, {"shaping": Shaping(top_k=5)}, {"shaping": Shaping(min_p=0.1)}, {})
        replies = [await ask(backend, user("hello"), **asked, **way) for way in ways]
        assert [bool(reply.kept) for reply in replies] == [True, True, True, False]
        batch = [
            as_transition(
                reply, "r", f"c{n}", advantage=1.0 - 2 * (n % 2), temperature=0.8,
                grammar=write_masks(reply.kept) if reply.kept else None,
            )
            for n, reply in enumerate(replies)
        ]  # fmt: skip
        metrics = await backend.update(Batch(0, (Trajectory("r", "g", "t", 0.0, tuple(batch)),)), GRPO())
        assert metrics["logprob_gap_max"] < 1e-4


def test_a_whole_run_trains_what_it_samples(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(tiny_folder()))
    make_state_network("qwen3_5_text", len(tokenizer), scale=1.0).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")

    async def solve(task: lightning.Task) -> float:
        async with openai.AsyncOpenAI(api_key="none") as client:
            messages = [{"role": "user", "content": f"number {task.input['n']}"}]
            for _ in range(2):
                reply = await client.chat.completions.create(model="policy", messages=messages, max_tokens=8)
                messages.append({"role": "assistant", "content": reply.choices[0].message.content or ""})
                messages.append({"role": "user", "content": "go on"})
        return float(len(str(messages)) % 7)

    trainer = lightning.Trainer(
        model=str(tmp_path / "model"),
        folder=tmp_path / "run",
        algorithm=lightning.GRPO(group_size=4, tasks_per_step=2),
        steps=2,
        progress=False,
    )
    summary = trainer.fit(solve, train=[{"n": n} for n in range(4)])
    assert summary.failures == summary.skipped_updates == 0
    found = records(tmp_path / "run").metrics
    assert len(found) == 2
    assert all(each.values["logprob_gap_max"] < 1e-4 for each in found.values())


async def test_a_network_that_plans_can_t_run_keeps_its_own_attention(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    config = StableLmConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.2,
    )
    StableLmForCausalLM(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    network = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    async with serving(tmp_path) as backend:
        batch = await sample_batch(backend)
        for each in batch:
            for call in each.transitions:
                wanted = plain_logprobs(network, list(call.prompt_ids), list(call.completion_ids))
                assert list(call.logprobs) == pytest.approx(wanted, abs=2e-5)
        assert (await backend.update(Batch(0, batch), GRPO()))["logprob_gap_max"] < 2e-5


def test_a_network_that_hides_its_state_is_refused_by_name() -> None:
    network = RwkvForCausalLM(
        RwkvConfig(vocab_size=300, hidden_size=64, num_hidden_layers=2, context_length=128)
    )
    with pytest.raises(UnsupportedError, match="'rwkv'"):
        StateDecoder(network.eval(), torch.float32)
