"""The critic's laws: the right token, merging changes nothing, both networks change or neither does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from lightning_core.algorithms.base import Critic
from lightning_core.algorithms.losses import value_loss
from lightning_core.backends.base import Batch
from lightning_core.backends.local import LocalBackend
from lightning_core.backends.local.critic import COPIES, LocalCritic
from lightning_core.backends.local.model import load_model
from lightning_core.backends.local.policy import Policy
from lightning_core.backends.settings import LoraOptions, TrainingSettings
from lightning_core.errors import ModelError, TrainingError
from lightning_core.records.types import Key, Trajectory
from tests.backends.serving import sample_batch, serving
from tests.backends.test_update import Reinforce, interleaved


@dataclass(frozen=True)
class WithCritic(Reinforce):
    """Reinforce beside a critic."""

    critic: Critic = Critic(learning_rate=1e-2)  # noqa: RUF009


@dataclass(frozen=True)
class Fails(WithCritic):
    """Its policy loss is not finite."""

    poison: float = float("nan")


def make_critic(
    folder: Path, lora: LoraOptions | None = None, *, merge: bool = True, **options: Any
) -> tuple[Policy, LocalCritic]:
    policy, settings = Policy(load_model(folder, device="cpu"), lora), TrainingSettings(**options)
    settings.prefix_sharing = merge
    return policy, LocalCritic(policy, settings)


def with_targets(batch: Sequence[Trajectory]) -> tuple[Trajectory, ...]:
    """Each state is to be worth what its tokens say: a function that a value network can learn."""
    return tuple(
        replace(
            each,
            transitions=tuple(
                replace(t, target=1.0 if t.prompt_ids[-1] % 2 else -1.0, value=0.0) for t in each.transitions
            ),
        )
        for each in batch
    )


def fit(critic: LocalCritic, batch: tuple[Trajectory, ...], options: Critic) -> dict[str, float]:
    with critic.fitting(batch, WithCritic(critic=options)) as metrics:
        return metrics


def weights(critic: LocalCritic) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in critic.state().items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def by_transformers(folder: Path, critic: LocalCritic, batch: Sequence[Trajectory]) -> dict[Key, float]:
    """The head after the last token of each prompt, one plain forward pass for each."""
    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    trained = {name.removeprefix("weights."): w for name, w in critic.state().items()}
    trunk = {n.removeprefix("trunk."): w for n, w in trained.items() if n.startswith("trunk.")}
    network.base_model.load_state_dict(trunk)
    found = {}
    with torch.no_grad():
        for t in (t for each in batch for t in each.transitions):
            last = network.base_model(torch.tensor([list(t.prompt_ids)])).last_hidden_state[0, -1]
            found[t.key] = float(trained["head.weight"][0] @ last + trained["head.bias"][0])
    return found


@pytest.mark.parametrize("seed", range(2))
def test_values_are_those_at_the_last_prompt_token_merged_or_not(folder: Path, seed: int) -> None:
    batch = with_targets(interleaved(seed))
    _, critic = make_critic(folder, pack_tokens=90)
    fit(critic, batch, Critic(learning_rate=1e-2, epochs=3))
    wanted = by_transformers(folder, critic, batch)
    assert len({round(value, 3) for value in wanted.values()}) > 5
    assert critic.values(batch) == pytest.approx(wanted, abs=1e-4)
    for options in ({"merge": False}, {"pack_tokens": 100_000}):
        _, other = make_critic(folder, **options)
        other.load(critic.state(), critic.steps)
        assert other.values(batch) == pytest.approx(wanted, abs=1e-4)


def test_a_reply_is_no_part_of_its_state(qwen: Path) -> None:
    batch = with_targets(interleaved(0))
    _, critic = make_critic(qwen)
    fit(critic, batch, Critic(learning_rate=1e-2, epochs=3))
    silent = tuple(
        replace(
            each, transitions=tuple(replace(t, completion_ids=[9], logprobs=[-1.0]) for t in each.transitions)
        )
        for each in batch
    )
    assert critic.values(silent) == critic.values(batch)


def test_only_states_of_trained_agents_have_values(qwen: Path) -> None:
    batch = interleaved(0)
    mixed = tuple(
        replace(each, transitions=tuple(replace(t, trained=t.agent == "a0") for t in each.transitions))
        for each in batch
    )
    values = make_critic(qwen)[1].values(mixed)
    assert values.keys() == {t.key for each in mixed for t in each.transitions if t.agent == "a0"}
    assert set(values.values()) == {0.0}  # as the head is at the start


@pytest.mark.parametrize("lora", [None, LoraOptions(rank=8)])
def test_fitting_a_fixed_batch_brings_its_error_to_nearly_nothing(
    folder: Path, lora: LoraOptions | None
) -> None:
    batch = with_targets(interleaved(0))
    policy, critic = make_critic(folder, lora)
    before = [p.detach().clone() for p in policy.network.parameters()]
    first = fit(critic, batch, Critic(learning_rate=1e-2, epochs=1))
    assert first["value_loss"] == pytest.approx(0.5)  # half of 1 squared, while all values are 0
    last = fit(critic, batch, Critic(learning_rate=1e-2, epochs=60))
    assert last["value_loss_last"] < 0.005
    values = critic.values(batch)
    for each in batch:
        for t in each.transitions:
            assert values[t.key] == pytest.approx(t.target, abs=0.3)
    assert all(torch.equal(p, old) for p, old in zip(policy.network.parameters(), before, strict=True))


def test_merging_changes_no_gradient_of_the_critic(folder: Path) -> None:
    batch = with_targets(interleaved(1))
    found = []
    for options in ({}, {"merge": False}, {"pack_tokens": 80}):
        metrics = fit(make_critic(folder, **options)[1], batch, Critic(epochs=3))
        found.append([metrics["value_loss_last"], metrics["value_grad_norm"]])
    assert found[1] == pytest.approx(found[0], rel=1e-4)
    assert found[2] == pytest.approx(found[0], rel=1e-4)


def test_layers_computed_again_for_want_of_memory_change_no_value(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = with_targets(interleaved(1))
    found = []
    for memory in (1 << 40, 1 << 20):
        monkeypatch.setattr("lightning_core.backends.local.policy.memory_bytes", lambda _, m=memory: m)
        metrics = fit(make_critic(folder)[1], batch, Critic(epochs=3))
        found.append([metrics["value_loss_last"], metrics["value_grad_norm"]])
    assert found[1] == pytest.approx(found[0], rel=1e-5)


def test_lora_shares_the_frozen_weights_and_trains_adapters_of_its_own(qwen: Path) -> None:
    batch = with_targets(interleaved(0))
    policy, critic = make_critic(qwen, LoraOptions(rank=4))
    critic.values(batch)
    assert critic._made is not None
    theirs = {p.data_ptr(): p.requires_grad for p in policy.base.parameters()}
    for name, parameter in critic._made[0].named_parameters():
        shared = parameter.data_ptr() in theirs
        assert shared == ("lora_" not in name and "head" not in name), name
        assert parameter.requires_grad != shared, name


def test_the_value_loss_by_hand() -> None:
    # errors 1, -2, 0.5: half the squares
    values, targets = torch.tensor([2.0, 0.0, 1.5]), torch.tensor([1.0, 2.0, 1.0])
    assert value_loss(values, targets).tolist() == pytest.approx([0.5, 2.0, 0.125])


def test_a_fit_that_is_not_finite_changes_nothing(qwen: Path) -> None:
    batch = with_targets(interleaved(0))
    _, critic = make_critic(qwen)
    fit(critic, batch, Critic(epochs=2))
    before, steps = weights(critic), critic.steps
    poisoned = tuple(
        replace(each, transitions=tuple(replace(t, target=float("inf")) for t in each.transitions))
        for each in batch
    )
    with pytest.raises(TrainingError, match="critic's gradient is not finite"):
        fit(critic, poisoned, Critic(epochs=2))
    assert same(weights(critic), before)
    assert critic.steps == steps


async def test_policy_and_critic_change_both_or_neither(qwen: Path) -> None:
    async with serving(qwen, learning_rate=1e-2, warmup_steps=1) as backend:
        batch = with_targets(await sample_batch(backend))
        metrics = await backend.update(Batch(0, batch), WithCritic())
        assert {"value_loss", "value_seconds", "value_grad_norm", "loss"} <= metrics.keys()
        parts = backend._started

        def everything() -> list[torch.Tensor]:
            return [*parts.policy.parameters, *parts.critic.state().values()]

        before = [value.detach().clone() for value in everything()]
        poisoned = tuple(
            replace(each, transitions=tuple(replace(t, target=float("nan")) for t in each.transitions))
            for each in batch
        )
        for broken, algorithm in ((batch, Fails()), (poisoned, WithCritic())):
            with pytest.raises(TrainingError, match="not finite"):
                await backend.update(Batch(1, broken), algorithm)
            assert all(torch.equal(a, b) for a, b in zip(everything(), before, strict=True))
        await backend.update(Batch(1, batch), WithCritic())
        assert not any(torch.equal(a, b) for a, b in zip(parts.policy.parameters, before, strict=False))


@pytest.mark.parametrize("lora", [None, LoraOptions(rank=4)])
async def test_going_on_from_a_checkpoint_equals_never_having_stopped(
    folder: Path, tmp_path: Path, lora: LoraOptions | None
) -> None:
    algorithm = WithCritic(critic=Critic(learning_rate=1e-2, epochs=2))
    async with serving(folder, lora=lora, learning_rate=1e-2) as backend:
        batch = with_targets(await sample_batch(backend))
        for step in range(2):
            await backend.update(Batch(step, batch), algorithm)
            await backend.publish()
        await backend.save(tmp_path / "checkpoint")
        values = await backend.values(batch)
        metrics = await backend.update(Batch(2, batch), algorithm)
        wanted = weights(backend._started.critic)
    async with serving(folder, lora=lora, learning_rate=1e-2, seed=99) as backend:
        await backend.load(tmp_path / "checkpoint")
        assert await backend.values(batch) == values
        again = await backend.update(Batch(2, batch), algorithm)
        for name in ("loss", "grad_norm", "value_loss", "value_loss_last", "value_grad_norm"):
            assert again[name] == metrics[name]
        assert same(weights(backend._started.critic), wanted)


async def test_a_critic_is_made_only_when_an_algorithm_needs_one(qwen: Path, tmp_path: Path) -> None:
    async with serving(qwen, learning_rate=1e-2, warmup_steps=1) as backend:
        batch = await sample_batch(backend)
        await backend.update(Batch(0, batch), Reinforce())
        await backend.publish()
        await backend.save(tmp_path / "before")
        assert not (tmp_path / "before" / "critic.safetensors").exists()
        wanted = await _phase(backend, batch)
        await backend.save(tmp_path / "after")
        assert (tmp_path / "after" / "critic.safetensors").exists()
        # a checkpoint from before there was one: the critic is made anew, of the policy as it was then
        await backend.load(tmp_path / "before")
        assert backend._started.policy.copies == 0
        assert await _phase(backend, batch) == wanted
        assert backend._started.policy.copies == COPIES
    async with serving(qwen, learning_rate=1e-2, warmup_steps=1) as backend:
        await backend.load(tmp_path / "before")
        assert await _phase(backend, batch) == wanted


async def _phase(backend: LocalBackend, batch: tuple[Trajectory, ...]) -> dict[Key, float]:
    """The first update of a phase with a critic, and the values after it."""
    assert set((await backend.values(batch)).values()) == {0.0}
    await backend.update(Batch(1, with_targets(batch)), WithCritic())
    return await backend.values(batch)


async def test_a_checkpoint_whose_critic_is_torn_is_refused(qwen: Path, tmp_path: Path) -> None:
    async with serving(qwen) as backend:
        await backend.values(await sample_batch(backend))
        await backend.save(tmp_path / "checkpoint")
        (tmp_path / "checkpoint" / "critic.safetensors").write_bytes(b"")
        with pytest.raises(ModelError, match="can't go on from checkpoint"):
            await backend.load(tmp_path / "checkpoint")
