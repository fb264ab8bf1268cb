"""The update's laws: merging changes no gradient, a bad gradient changes nothing, LoRA changes only LoRA."""

from __future__ import annotations

import asyncio
import random
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from lightning_core.algorithms.base import Entries
from lightning_core.algorithms.policy_gradient import GRPO, PPO
from lightning_core.backends.base import Batch
from lightning_core.backends.local import LocalBackend
from lightning_core.backends.local.attention import leave_plans
from lightning_core.backends.local.model import load_model
from lightning_core.backends.local.optimizer import Optimizer
from lightning_core.backends.local.policy import Policy
from lightning_core.backends.settings import LoraOptions, Schedule, TrainingSettings
from lightning_core.errors import BackendError, ConfigError, TrainingError, UnsupportedError
from lightning_core.experience.trajectories import make_packs, trained_transitions
from lightning_core.records.types import Trajectory, Transition
from tests.backends.serving import ask, sample_batch, serving


@dataclass(frozen=True)
class Reinforce:
    """-sum of w A log p; `poison` multiplies the loss."""

    poison: float = 1.0
    epochs: int = 1
    needs_reference: bool = False
    needs_proximal: bool = False
    needs_teacher: bool = False
    learns_from: None = None
    name: str = "reinforce"
    group_size: int = 2

    def weigh(self, trajectories: tuple[Trajectory, ...]) -> dict[tuple[str, str, int], float]:
        transitions = trained_transitions(trajectories)
        return {t.key: 1.0 / (len(transitions) * len(t.completion_ids)) for t in transitions}

    def units(self, trajectories: tuple[Trajectory, ...]) -> dict[tuple[str, str, int], int]:
        return {}

    def loss(self, entries: Entries) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        loss = -(entries.weights * entries.advantages * entries.logprobs).sum() * self.poison
        return loss, {"mean_weight": entries.weights.sum()}


@dataclass(frozen=True)
class Spoils(Reinforce):
    """Fine in the first epoch, poison in the second."""

    epochs: int = 2

    def loss(self, entries: Entries) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        second = bool((entries.logprobs.detach() - entries.old_logprobs).abs().max() > 1e-3)
        return entries.logprobs.sum() * (float("nan") if second else 1.0), {}


def make_optimizer(
    folder: Path, lora: LoraOptions | None = None, *, merge: bool = True, **options: Any
) -> tuple[Policy, Optimizer]:
    policy, settings = Policy(load_model(folder, device="cpu"), lora), TrainingSettings(**options)
    settings.prefix_sharing = merge
    return policy, Optimizer(policy, settings, source=str(folder))


def gradients(policy: Policy) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in policy.parameters if p.grad is not None])


def apart(a: torch.Tensor, b: torch.Tensor) -> float:
    """Relative distance."""
    return float((a - b).norm() / b.norm())


def interleaved(seed: int, rollouts: int = 3, calls: int = 7) -> tuple[Trajectory, ...]:
    """A group of rollouts in which two sub-agents take turns, with retries, branches, changed histories."""
    draw = random.Random(seed)

    def tokens(least: int, most: int) -> list[int]:
        return [draw.randrange(5, 300) for _ in range(draw.randrange(least, most))]

    prompts = [tokens(5, 40), tokens(5, 12)]
    batch = []
    for r in range(rollouts):
        histories, transitions = [list(p) for p in prompts], []
        for c in range(calls):
            agent = draw.randrange(2)
            reply = tokens(1, 12)
            transitions.append(
                Transition(
                    f"r{r}", f"c{c}", 0, f"a{agent}", True, list(histories[agent]), reply,
                    [-draw.random() * 6 for _ in reply], 0,
                    temperature=draw.choice([1.0, 1.0, 0.7]), advantage=draw.uniform(-1, 1),
                )
            )  # fmt: skip
            kind = draw.random()
            if kind < 0.6:
                histories[agent] += reply + tokens(1, 8)
            elif kind < 0.8:
                histories[agent] += reply[:-1] + tokens(1, 8)
        batch.append(Trajectory(f"r{r}", "g", "t", 0.0, tuple(transitions)))
    return tuple(batch)


def by_transformers(
    folder: Path, batch: tuple[Trajectory, ...], algorithm: Any
) -> tuple[float, torch.Tensor]:
    """Loss and gradient, one plain forward pass for each transition: what everything else must equal."""
    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    weights, total = algorithm.weigh(batch), torch.zeros(())
    for t in trained_transitions(batch):
        ids = torch.tensor([[*t.prompt_ids, *t.completion_ids]])
        logits = network(ids).logits[0, len(t.prompt_ids) - 1 : -1] / t.temperature
        count = len(t.completion_ids)
        logprobs = logits.log_softmax(-1)[torch.arange(count), torch.tensor(t.completion_ids)]
        entries = Entries(
            logprobs=logprobs,
            proximal_logprobs=logprobs.detach(),
            units=torch.full((count,), -1),
            old_logprobs=torch.tensor(t.logprobs),
            advantages=torch.full((count,), t.advantage),
            weights=torch.full((count,), weights[t.key]),
            sequences=torch.zeros(count, dtype=torch.int64),
        )
        total = total + algorithm.loss(entries)[0]
    total.backward()
    return float(total.detach()), torch.cat(
        [p.grad.flatten() for p in network.parameters() if p.grad is not None]
    )


SEQUENCE = GRPO(ratio="sequence", correction=None, clip=(0.9, 9.0))


@pytest.mark.parametrize(
    "algorithm", [Reinforce(), GRPO(correction=None), GRPO(aggregation="rollout"), SEQUENCE]
)
@pytest.mark.parametrize("seed", range(3))
def test_merged_equals_unmerged_equals_one_by_one(folder: Path, algorithm: Any, seed: int) -> None:
    batch = interleaved(seed)
    wanted_loss, wanted = by_transformers(folder, batch, algorithm)
    for merge, pack_tokens in ((True, 100_000), (True, 90), (False, 200)):
        policy, optimizer = make_optimizer(folder)
        packs = make_packs(batch, algorithm.weigh(batch), pack_tokens=pack_tokens, merge=merge)
        metrics = optimizer.accumulate(packs, algorithm)
        assert metrics["loss"] == pytest.approx(wanted_loss, rel=1e-5, abs=1e-6)
        assert apart(gradients(policy), wanted) < 1e-5


def test_logits_in_parts_change_no_gradient(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = interleaved(0)
    wanted_loss, wanted = by_transformers(folder, batch, GRPO(correction=None))
    policy, optimizer = make_optimizer(folder)
    vocabulary = policy.base.config.vocab_size
    monkeypatch.setattr("lightning_core.backends.local.packing.LOGITS_BYTES", 7 * 4 * vocabulary)
    packs = make_packs(batch, GRPO(correction=None).weigh(batch), pack_tokens=90)
    metrics = optimizer.accumulate(packs, GRPO(correction=None))
    assert metrics["loss"] == pytest.approx(wanted_loss, rel=1e-5, abs=1e-6)
    assert apart(gradients(policy), wanted) < 1e-5


@pytest.mark.parametrize("lora", [None, LoraOptions(rank=4)])
def test_layers_computed_again_for_want_of_memory_change_no_gradient(
    folder: Path, lora: LoraOptions | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, algorithm = interleaved(0), GRPO(correction=None)
    packs = make_packs(batch, algorithm.weigh(batch), pack_tokens=90)
    found, kept = [], []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        size[0] += tensor.numel()
        return tensor

    for memory in (1 << 40, 1 << 20):
        monkeypatch.setattr("lightning_core.backends.local.policy.memory_bytes", lambda _, m=memory: m)
        policy, optimizer = make_optimizer(folder, lora)
        torch.manual_seed(0)  # LoRA's first halves are random
        for parameter in policy.parameters if lora else []:
            torch.nn.init.normal_(parameter, std=0.02)
        size = [0]
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            optimizer.accumulate(packs, algorithm)
        found.append(gradients(policy))
        kept.append(size[0])
    assert apart(found[1], found[0]) < 1e-6
    assert kept[1] < kept[0] / 2


def test_merging_saves_the_tokens_it_reports(qwen: Path) -> None:
    batch = interleaved(1)
    merged = make_optimizer(qwen)[1].update(batch, Reinforce())
    alone = make_optimizer(qwen, merge=False)[1].update(batch, Reinforce())
    assert merged["forward_tokens"] < merged["unmerged_tokens"] == alone["forward_tokens"]
    assert merged["merge_ratio"] == merged["unmerged_tokens"] / merged["forward_tokens"]
    assert alone["merge_ratio"] == 1.0
    assert merged["tokens"] == sum(len(t.completion_ids) for r in batch for t in r.transitions)
    assert merged["loss"] == pytest.approx(alone["loss"], rel=1e-5)


async def test_recorded_logprobs_are_those_of_the_training_forward(folder: Path) -> None:
    async with serving(folder) as backend:
        metrics = await backend.update(Batch(0, await sample_batch(backend)), Reinforce())
        assert metrics["logprob_gap_mean"] < 1e-4
        assert metrics["logprob_gap_max"] < 1e-3
        assert metrics["mean_weight"] == pytest.approx(1.0, abs=1e-5)


async def test_an_update_raises_the_probability_of_what_was_praised(qwen: Path) -> None:
    async with serving(qwen, learning_rate=1e-3, warmup_steps=1) as backend:
        batch = await sample_batch(backend)
        first = await backend.update(Batch(0, batch), Reinforce())
        for step in range(1, 5):
            last = await backend.update(Batch(step, batch), Reinforce())
        assert last["loss"] < first["loss"] - 0.05


async def test_requests_are_answered_by_the_published_weights_during_an_update(qwen: Path) -> None:
    began, answered = threading.Event(), threading.Event()

    @dataclass(frozen=True)
    class Slow(Reinforce):
        def loss(self, entries: Entries) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
            began.set()
            assert answered.wait(60)
            return super().loss(entries)

    async with serving(qwen) as backend:
        update = asyncio.create_task(backend.update(Batch(0, await sample_batch(backend)), Slow()))
        assert await asyncio.to_thread(began.wait, 60)
        assert (await ask(backend, "during", max_tokens=4)).policy_version == 0
        assert not update.done()
        answered.set()
        await update
        assert (await ask(backend, "after", max_tokens=4)).policy_version == 0
        assert await backend.publish() == 1
        assert (await ask(backend, "published", max_tokens=4)).policy_version == 1


async def test_requests_are_held_while_weights_change_and_answered_by_the_new_version(qwen: Path) -> None:
    async with serving(qwen) as backend:
        await backend.update(Batch(0, await sample_batch(backend)), Reinforce())
        running = asyncio.create_task(ask(backend, "before", max_tokens=400, seed=1))
        while not backend.sampler.running:
            await asyncio.sleep(0)
            assert not running.done()
        publish = asyncio.create_task(backend.publish())
        await asyncio.sleep(0)
        held = asyncio.create_task(ask(backend, "meanwhile", max_tokens=4))
        assert await publish == backend.policy_version == 1
        assert running.done()
        assert (await running).policy_version == 0
        assert (await held).policy_version == 1


async def test_published_weights_are_the_trained_ones(folder: Path) -> None:
    async with serving(folder, learning_rate=1e-2, warmup_steps=1) as backend:
        batch = await sample_batch(backend)
        await backend.update(Batch(0, batch), Reinforce())
        before = await _gap(backend)
        await backend.update(Batch(1, await sample_batch_after_publish(backend)), Reinforce())
        await backend.publish()
        assert before < 1e-4


async def sample_batch_after_publish(backend: LocalBackend) -> tuple[Trajectory, ...]:
    await backend.publish()
    return await sample_batch(backend)


async def _gap(backend: LocalBackend) -> float:
    """How far the engine, after publishing, is from the weights under training."""
    metrics = await backend.update(Batch(0, await sample_batch_after_publish(backend)), Reinforce())
    await backend.publish()
    return metrics["logprob_gap_mean"]


async def test_a_gradient_that_is_not_finite_changes_nothing_and_serving_goes_on(qwen: Path) -> None:
    async with serving(qwen, learning_rate=1e-2) as backend:
        batch = await sample_batch(backend)
        await backend.update(Batch(0, batch), Reinforce())
        await backend.publish()
        reply = await ask(backend, "fox", max_tokens=8, temperature=0.0)
        for poison in (float("nan"), float("inf")):
            with pytest.raises(TrainingError, match="not finite"):
                await backend.update(Batch(1, batch), Reinforce(poison=poison))
        assert (await ask(backend, "fox", max_tokens=8, temperature=0.0)).ids == reply.ids
        await backend.publish()  # the weights under training are as they were, too
        assert (await ask(backend, "fox", max_tokens=8, temperature=0.0)).logprobs == reply.logprobs


def test_a_bad_second_epoch_takes_the_first_one_back(qwen: Path) -> None:
    policy, optimizer = make_optimizer(qwen, learning_rate=1e-2, warmup_steps=1)
    optimizer.update(interleaved(0), Reinforce())
    weights = [p.detach().clone() for p in policy.parameters]
    moments = {name: value.clone() for name, value in optimizer.descent.moments().items()}
    batch = sampled_as_now(policy, optimizer)
    with pytest.raises(TrainingError):
        optimizer.update(batch, Spoils())
    assert optimizer.descent.steps == 1
    assert all(torch.equal(a, b) for a, b in zip(policy.parameters, weights, strict=True))
    assert all(torch.equal(value, moments[name]) for name, value in optimizer.descent.moments().items())


async def test_a_backend_that_closes_gives_its_update_up(qwen: Path) -> None:
    """At the next pass, of many: it does not go on for minutes."""
    passes = 0

    class Counts(Reinforce):
        def loss(self, entries: Entries) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
            nonlocal passes
            passes += 1
            begun.set()
            going.wait(60)
            return super().loss(entries)

    begun, going = threading.Event(), threading.Event()
    async with serving(qwen, merge=False, pack_tokens=1) as backend:
        batch = await sample_batch(backend)
        update = asyncio.ensure_future(backend.update(Batch(0, batch), Counts()))
        assert await asyncio.to_thread(begun.wait, 60)
        closing = asyncio.ensure_future(backend.close())
        await asyncio.sleep(0)
        going.set()
        await closing
        with pytest.raises(TrainingError, match="in the middle of an update, which was given up"):
            await update
        assert passes == 1
        await backend.start()  # as new, so that `serving` can close it


def test_in_a_second_epoch_an_algorithm_sees_three_policies(qwen: Path) -> None:
    """As recorded, as the update began, and as they are: o, q and p."""
    seen: list[Entries] = []

    @dataclass(frozen=True)
    class Looks(Reinforce):
        epochs: int = 3
        needs_proximal: bool = True

        def loss(self, entries: Entries) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
            seen.append(replace(entries, logprobs=entries.logprobs.detach()))
            return super().loss(entries)

    _, optimizer = make_optimizer(qwen, learning_rate=1e-2, warmup_steps=1)
    batch = interleaved(3, rollouts=1)
    optimizer.update(batch, Looks())
    first, *later = seen
    recorded = sorted(x for t in trained_transitions(batch) for x in t.logprobs)
    assert torch.equal(first.proximal_logprobs, first.logprobs)
    for entries in seen:
        assert sorted(entries.old_logprobs.tolist()) == pytest.approx(recorded)
        assert torch.equal(entries.proximal_logprobs, first.proximal_logprobs)
        assert not entries.proximal_logprobs.requires_grad
    steps = [first, *later]
    for before, after in zip(steps, later, strict=False):
        assert (after.logprobs - before.logprobs).abs().max() > 1e-3


def test_an_algorithm_that_needs_no_proximal_policy_is_given_none(qwen: Path) -> None:
    seen: list[torch.Tensor | None] = []

    @dataclass(frozen=True)
    class Looks(Reinforce):
        epochs: int = 2

        def loss(self, entries: Entries) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
            seen.append(entries.proximal_logprobs)
            return super().loss(entries)

    _, optimizer = make_optimizer(qwen)
    optimizer.update(interleaved(3, rollouts=1), Looks())
    assert seen == [None, None]
    assert not PPO().needs_proximal
    assert GRPO().needs_proximal


def sampled_as_now(policy: Policy, optimizer: Optimizer) -> tuple[Trajectory, ...]:
    """One transition whose recorded logprob is that of the present weights."""
    t = Transition("r", "c", 0, "a", True, [5, 6], [7], [0.0], 0, advantage=1.0)
    batch = (Trajectory("r", "g", "t", 0.0, (t,)),)
    packs = make_packs(batch, Reinforce().weigh(batch), pack_tokens=100)
    logprob = -optimizer.accumulate(packs, Reinforce())["loss"]
    return (replace(batch[0], transitions=(replace(t, logprobs=[logprob]),)),)


def test_a_batch_without_anything_to_train_on_is_refused(qwen: Path) -> None:
    t = Transition("r", "c", 0, "a", True, [5, 6], [7], [-1.0], 0)
    with pytest.raises(TrainingError, match="no trained transition with an advantage"):
        make_optimizer(qwen)[1].update((Trajectory("r", "g", "t", 0.0, (t,)),), Reinforce())


@pytest.mark.parametrize("lora", [None, LoraOptions(rank=4)])
def test_the_reference_is_the_start_whatever_was_trained_since(qwen: Path, lora: LoraOptions | None) -> None:
    seen: list[torch.Tensor] = []

    @dataclass(frozen=True)
    class Looks(Reinforce):
        needs_reference: bool = True

        def loss(self, entries: Entries) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
            assert entries.ref_logprobs is not None
            seen.append(entries.ref_logprobs - entries.logprobs.detach())
            return super().loss(entries)

    _, optimizer = make_optimizer(qwen, lora, learning_rate=1e-2, warmup_steps=1)
    batch = interleaved(2, rollouts=1)
    for _ in range(3):
        optimizer.update(batch, Looks())
    assert seen[0].abs().max() < 1e-4
    assert seen[1].abs().max() > 1e-3
    assert seen[2].abs().max() > seen[1].abs().max()


def test_the_reference_of_a_policy_that_runs_with_its_own_attention_does_too(qwen: Path) -> None:
    """As after a start that found plans inexact for this network."""
    policy, optimizer = make_optimizer(qwen)
    leave_plans(policy.base)
    metrics = optimizer.update(interleaved(2, rollouts=1), GRPO(kl=0.1))
    assert metrics["kl_reference"] == pytest.approx(0.0, abs=1e-6)


def test_a_reference_that_was_replaced_takes_no_memory(qwen: Path, llama: Path) -> None:
    policy, optimizer = make_optimizer(qwen)
    for folder in (qwen, llama, qwen):
        optimizer.set_reference(str(folder))
        assert policy.copies == 0
        optimizer.update(interleaved(2, rollouts=1), GRPO(kl=0.1))
        assert policy.copies == 1


def test_the_learning_rate_warms_up_in_a_line(qwen: Path) -> None:
    _, optimizer = make_optimizer(qwen, learning_rate=0.4, warmup_steps=4, max_grad_norm=1e-9)
    rates = [optimizer.update(interleaved(0, 1, 1), Reinforce())["learning_rate"] for _ in range(5)]
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4])


def test_the_rate_falls_by_its_schedule_and_a_resumed_run_goes_on_in_it(qwen: Path) -> None:
    settings = {"learning_rate": 0.4, "warmup_steps": 2, "max_grad_norm": 1e-9}
    batch = interleaved(0, 1, 1)

    def rates(optimizer: Optimizer, count: int) -> list[float]:
        return [optimizer.update(batch, Reinforce())["learning_rate"] for _ in range(count)]

    _, linear = make_optimizer(qwen, schedule=Schedule("linear", steps=6, least=0.5), **settings)
    assert rates(linear, 3) == pytest.approx([0.2, 0.4, 0.4])
    moments, steps = linear.descent.moments(), linear.descent.steps
    _, resumed = make_optimizer(qwen, schedule=Schedule("linear", steps=6, least=0.5), **settings)
    resumed.descent.load(moments, steps)
    # x = 1/4, 2/4, 3/4, 1, 1: 1 - x / 2
    assert rates(resumed, 5) == pytest.approx([0.35, 0.3, 0.25, 0.2, 0.2])
    _, cosine = make_optimizer(qwen, schedule=Schedule("cosine", steps=4), **settings)
    assert rates(cosine, 6) == pytest.approx([0.2, 0.4, 0.4, 0.2, 0.0, 0.0], abs=1e-12)


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_after_warm_up_the_schedules_are_those_of_transformers_a_step_on(kind: str) -> None:
    from transformers import get_cosine_schedule_with_warmup, get_linear_schedule_with_warmup

    theirs = {"linear": get_linear_schedule_with_warmup, "cosine": get_cosine_schedule_with_warmup}[kind]
    adamw = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    factor = theirs(adamw, num_warmup_steps=3, num_training_steps=20).lr_lambdas[0]
    options = TrainingSettings(warmup_steps=3, schedule=Schedule(kind, steps=20))  # type: ignore[arg-type]
    found = [options.rate_share(step) for step in range(4, 22)]
    assert found == pytest.approx([factor(step - 1) for step in range(4, 22)])


def test_mini_batches_make_a_step_each_and_the_clip_acts_in_the_later_ones(qwen: Path) -> None:
    batch = tuple(replace(each, group_id=f"g{n}") for n, each in enumerate(interleaved(3)))
    parted = GRPO(mini_batch_size=1, clip=1e-4)
    _, optimizer = make_optimizer(qwen, learning_rate=1e-2, warmup_steps=1)
    metrics = optimizer.update(batch, parted)
    assert optimizer.descent.steps == len(batch)
    assert metrics["clip_share"] > 0.2
    _, other = make_optimizer(qwen, learning_rate=1e-2, warmup_steps=1)
    first = other.update(batch[:1], GRPO())
    _, whole = make_optimizer(qwen, learning_rate=1e-2, warmup_steps=1)
    assert (first["clip_share"], other.descent.steps) == (0, 1)
    gap = whole.update(batch, GRPO())  # of all mini-batches, before any step was made
    assert metrics["logprob_gap_max"] == pytest.approx(gap["logprob_gap_max"], rel=1e-5)
    assert metrics["logprob_gap_mean"] == pytest.approx(gap["logprob_gap_mean"], rel=1e-5)
    assert metrics["logprob_gap_max"] > first["logprob_gap_max"]


async def test_lora_trains_its_adapters_alone_and_serves_what_they_amount_to(qwen: Path) -> None:
    async with serving(qwen, lora=LoraOptions(rank=4), learning_rate=1e-2, warmup_steps=1) as backend:
        policy = backend._started.policy
        base = {n: p.clone() for n, p in policy.network.named_parameters() if "lora_" not in n}
        batch = await sample_batch(backend)
        first = await ask(backend, "fox", max_tokens=8, seed=1)
        for step in range(3):
            await backend.update(Batch(step, batch), Reinforce())
        await backend.publish()
        after = await ask(backend, "fox", max_tokens=8, seed=1)
        assert after.logprobs != first.logprobs
        metrics = await backend.update(Batch(3, await sample_batch_after_publish(backend)), Reinforce())
        assert metrics["logprob_gap_mean"] < 1e-4
        named = dict(policy.network.named_parameters())
        assert all(torch.equal(named[n], weight) for n, weight in base.items())
        assert all("lora_" in n for n, p in named.items() if p.requires_grad)


def test_lora_targets_that_do_not_exist_are_named(qwen: Path) -> None:
    with pytest.raises(ConfigError, match="nothing_like_it"):
        make_optimizer(qwen, LoraOptions(targets=("nothing_like_it",)))


@pytest.mark.parametrize("target", ["embed_tokens", "lm_head"])
def test_lora_targets_that_share_a_weight_are_named(qwen: Path, llama: Path, target: str) -> None:
    with pytest.raises(ConfigError, match=f"{target}': its weight is also another layer's"):
        make_optimizer(qwen, LoraOptions(targets=(target, "q_proj")))
    make_optimizer(llama, LoraOptions(targets=(target, "q_proj")))  # it shares none


def test_the_default_learning_rate_is_for_small_models_larger(qwen: Path) -> None:
    assert make_optimizer(qwen)[1].learning_rate == 4e-4
    assert make_optimizer(qwen, learning_rate=1e-5)[1].learning_rate == 1e-5


def test_an_algorithm_without_a_loss_is_refused_by_name(qwen: Path) -> None:
    @dataclass
    class PromptSearch:
        name: str = "prompt search"

    algorithm: Any = PromptSearch()
    with pytest.raises(UnsupportedError, match="prompt search"):
        LocalBackend(qwen).check(algorithm)
    LocalBackend(qwen).check(GRPO())


@pytest.mark.parametrize("epochs", [1, 2])
def test_weights_that_are_not_finite_after_a_step_are_said_to_be_lost(llama: Path, epochs: int) -> None:
    """Within the options' ranges no gradient does that; a machine may. The row is of a token that is not
    used, so that loss and gradient do not show it."""
    policy, optimizer = make_optimizer(llama)
    with torch.no_grad():
        policy.base.get_input_embeddings().weight[1] = float("nan")
    words = (
        r"policy's weights are not finite after optimizer step 1, .*embed_tokens\.weight' the.*resume the run"
    )
    with pytest.raises(BackendError, match=words):
        optimizer.update(interleaved(0), Reinforce(epochs=epochs))


@pytest.mark.parametrize("lora", [None, LoraOptions(rank=2)])
def test_the_largest_step_that_the_options_allow_keeps_weights_and_moments_finite(
    qwen: Path, lora: LoraOptions | None
) -> None:
    policy, optimizer = make_optimizer(
        qwen,
        lora,
        learning_rate=1.0,
        max_grad_norm=1e12,
        warmup_steps=0,
    )
    draw = torch.Generator().manual_seed(0)
    for size in (1e12, 0.0, 1e-30, 1e12):
        for p in policy.parameters:
            p.grad = size * torch.randn(p.shape, generator=draw)
        assert torch.tensor(optimizer.descent.clip()).isfinite()
        optimizer.descent.step(1.0)
        optimizer.descent.check_finite(optimizer._policy.network, "policy's")
        assert all(value.isfinite().all() for value in optimizer.descent.moments().values())


@dataclass(frozen=True)
class Greedy(Reinforce):
    """Asks the machine for a petabyte where a pass has more than `most` loss entries."""

    most: int = 0

    def loss(self, entries: Entries) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        if len(entries.logprobs) > self.most:
            torch.empty(1 << 50, dtype=torch.uint8)
        return super().loss(entries)


def long_calls(count: int = 6, prompt: int = 200, reply: int = 100) -> tuple[Trajectory, ...]:
    """Calls of which each takes more than the least of a pass."""
    draw, found = random.Random(0), []
    for index in range(count):
        ids = [draw.randrange(5, 300) for _ in range(prompt + reply)]
        call = Transition(
            f"r{index}",
            "c",
            0,
            "a",
            True,
            ids[:prompt],
            ids[prompt:],
            [-5.0] * reply,
            0,
            advantage=1.0 - index,
        )
        found.append(Trajectory(f"r{index}", "g", "t", 0.0, (call,)))
    return tuple(found)


@pytest.mark.parametrize("epochs", [1, 2])
def test_an_update_that_runs_out_of_memory_goes_on_in_smaller_passes_with_the_same_weights(
    qwen: Path, caplog: pytest.LogCaptureFixture, epochs: int
) -> None:
    enough, first = make_optimizer(qwen, learning_rate=1e-3)
    first.update(long_calls(), Reinforce(epochs=epochs))
    little, second = make_optimizer(qwen, learning_rate=1e-3)
    metrics = second.update(long_calls(), Greedy(most=300, epochs=epochs))
    assert second.recomputes
    assert second.pass_tokens == 1024
    assert "memory ran out in an update" in caplog.text
    assert second.descent.steps == epochs
    assert metrics["tokens"] == 600
    a, b = (torch.cat([p.detach().flatten() for p in each.parameters]) for each in (little, enough))
    assert apart(a, b) < 1e-4


def test_an_update_with_no_memory_for_the_smallest_pass_is_refused_and_changes_nothing(qwen: Path) -> None:
    policy, optimizer = make_optimizer(qwen)
    before = [p.detach().clone() for p in policy.parameters]
    with pytest.raises(TrainingError, match=r"memory ran out in a pass of 256 tokens.*LoraOptions"):
        optimizer.update(long_calls(), Greedy(most=0))
    assert all(torch.equal(a, b) for a, b in zip(before, policy.parameters, strict=True))
    assert optimizer.descent.steps == 0
