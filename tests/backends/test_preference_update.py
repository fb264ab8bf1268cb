"""DPO and SFT on real models: units stay whole, packing changes nothing, the reference can be moved."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from lightning_core.algorithms.dpo import DPO
from lightning_core.algorithms.sft import SFT
from lightning_core.backends.settings import LoraOptions
from lightning_core.credit.base import assign
from lightning_core.experience.trajectories import make_packs
from lightning_core.records.types import Trajectory
from lightning_core.trainer.demonstrations import encode_all
from tests.backends.serving import ask, serving
from tests.backends.test_update import apart, gradients, interleaved, make_optimizer

ALGORITHM = DPO(beta=0.3)


def paired(seed: int, algorithm: DPO = ALGORITHM) -> tuple[Trajectory, ...]:
    """Six rollouts of two agents, paired; two groups share the first tokens of their prompts."""
    batch = [
        replace(each, reward=float(place % 3), group_id=f"g{place // 3}", rollout_id=f"r{place}")
        for place, each in enumerate(interleaved(seed, rollouts=6, calls=4))
    ]
    credited, _ = assign(batch, algorithm.credit, algorithm.baseline, algorithm.scale)
    return tuple(credited)


def by_transformers(
    policy: torch.nn.Module, start: torch.nn.Module, batch: tuple[Trajectory, ...]
) -> torch.Tensor:
    """DPO's loss, one plain forward pass for each reply."""
    replies = {t.key: t for each in batch for t in each.transitions}

    def side(network: torch.nn.Module, keys: list[tuple[str, str, int]]) -> torch.Tensor:
        total = torch.zeros(())
        for t in (replies[key] for key in keys):
            logits = network(torch.tensor([[*t.prompt_ids, *t.completion_ids]])).logits[0] / t.temperature
            logprobs = logits.log_softmax(-1)[len(t.prompt_ids) - 1 : -1]
            total = total + logprobs.gather(1, torch.tensor(t.completion_ids)[:, None]).sum()
        return total

    units = ALGORITHM.units(batch)
    losses = []
    for unit in set(units.values()):
        keys = [key for key, number in units.items() if number == unit]
        chosen = [key for key in keys if replies[key].advantage == 1]
        rejected = [key for key in keys if replies[key].advantage == -1]
        assert len(chosen) + len(rejected) == len(keys)
        with torch.no_grad():
            before = side(start, chosen) - side(start, rejected)
        now = side(policy, chosen) - side(policy, rejected)
        losses.append(torch.log1p(torch.exp(-ALGORITHM.beta * (now - before))))
    return torch.stack(losses).mean()


@pytest.mark.parametrize("pack_tokens", [1, 60, 100_000])
def test_the_units_of_a_batch_are_whole_in_every_pack(pack_tokens: int) -> None:
    batch = paired(0)
    units = ALGORITHM.units(batch)
    assert len(set(units.values())) >= 3
    packs = make_packs(batch, ALGORITHM.weigh(batch), pack_tokens=pack_tokens, units=units)
    assert sorted(key for pack in packs for key in pack.keys) == sorted(units)
    for unit in set(units.values()):
        assert len([pack for pack in packs if unit in pack.units]) == 1


@pytest.mark.parametrize("seed", range(2))
def test_dpo_merged_equals_unmerged_equals_one_by_one(folder: Path, seed: int) -> None:
    batch = paired(seed)
    policy, optimizer = make_optimizer(folder, learning_rate=1e-3, warmup_steps=1)
    for _ in range(2):  # away from the start, or the reference would say nothing
        optimizer.update(batch, ALGORITHM)
    trained, start = (AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32) for _ in range(2))
    trained.load_state_dict(policy.serving_weights())
    loss = by_transformers(trained.eval(), start.eval(), batch)
    loss.backward()
    wanted = torch.cat([p.grad.flatten() for p in trained.parameters() if p.grad is not None])
    assert abs(float(loss.detach()) - math.log(2)) > 0.05
    for merge, pack_tokens in ((True, 100_000), (True, 1), (False, 80)):
        packs = make_packs(
            batch,
            ALGORITHM.weigh(batch),
            pack_tokens=pack_tokens,
            units=ALGORITHM.units(batch),
            merge=merge,
        )
        assert optimizer.accumulate(packs, ALGORITHM)["loss"] == pytest.approx(float(loss.detach()), rel=1e-4)
        assert apart(gradients(policy), wanted) < 1e-4


def test_updates_make_the_better_side_likelier_than_the_reference_has_it(qwen: Path) -> None:
    _, optimizer = make_optimizer(qwen, learning_rate=1e-3, warmup_steps=1)
    batch = paired(1)
    first = optimizer.update(batch, ALGORITHM)
    assert first["loss"] == pytest.approx(math.log(2), abs=1e-5)
    for _ in range(4):
        last = optimizer.update(batch, ALGORITHM)
    assert last["loss"] < first["loss"] - 0.05
    assert last["pair_accuracy"] == 1


@pytest.mark.parametrize("lora", [None, LoraOptions(rank=4)])
async def test_a_reference_that_is_moved_to_the_present_policy_agrees_with_it(
    qwen: Path, tmp_path: Path, lora: LoraOptions | None
) -> None:
    async with serving(qwen, learning_rate=1e-2, warmup_steps=1, lora=lora) as backend:
        optimizer, batch = backend._started.optimizer, paired(2)
        for _ in range(3):
            optimizer.update(batch, ALGORITHM)
        await backend.export(tmp_path / "here")
        assert optimizer.update(batch, ALGORITHM)["loss"] < math.log(2) - 0.05
        await backend.export(tmp_path / "there")
        await backend.set_reference(tmp_path / "there")
        # exported in the format that serves, bfloat16 perhaps
        assert optimizer.update(batch, ALGORITHM)["loss"] == pytest.approx(math.log(2), abs=0.01)


async def test_demonstrations_are_learnt_without_recorded_logprobs(qwen: Path) -> None:
    async with serving(qwen, learning_rate=3e-3, warmup_steps=1) as backend:
        rows = [
            {"messages": [{"role": "user", "content": "fox"}], "reply": "jumps over"},
            {"messages": [{"role": "user", "content": "dog"}], "reply": "is lazy"},
        ]
        algorithm = SFT(demonstrations=rows)
        assert algorithm.learns_from is not None
        taught = encode_all(algorithm.learns_from, backend, None)
        credited, _ = assign(taught, algorithm.credit, algorithm.baseline, algorithm.scale)
        optimizer = backend._started.optimizer
        losses = [optimizer.update(tuple(credited), algorithm) for _ in range(30)]
        assert losses[-1]["loss"] < 0.1 < losses[0]["loss"]
        assert not any(math.isnan(value) for value in losses[0].values())
        await backend.publish()
        assert (await ask(backend, "fox", temperature=0.0, max_tokens=20)).text == "jumps over"
