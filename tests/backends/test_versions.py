"""Any version of the weights is served, exported and compared from where it lies, without an optimizer."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from lightning_core.algorithms.policy_gradient import GRPO
from lightning_core.backends.base import Batch
from lightning_core.backends.local import LocalBackend
from lightning_core.backends.local.versions import LocalVersion
from lightning_core.backends.settings import LoraOptions
from lightning_core.dialects.upstream import ChatRequest
from lightning_core.errors import ModelError
from tests.backends.serving import plain_logprobs, sample_batch, serving, user

LORA = LoraOptions(rank=2)


async def greedy(opened: LocalVersion) -> tuple[list[int], list[int], list[float], int]:
    """(prompt ids, ids, logprobs, version) of one reply."""
    generation = await opened.upstream.chat(ChatRequest(user("hello"), max_tokens=8, temperature=0.0))
    deltas = [delta async for delta in generation]
    ids = [i for delta in deltas for i in delta.token_ids]
    logprobs = [p for delta in deltas for p in delta.logprobs]
    return generation.prompt_ids, ids, logprobs, generation.policy_version


async def trained(model: Path, folder: Path, lora: LoraOptions | None) -> None:
    """A checkpoint after one update with large steps."""
    async with serving(model, learning_rate=0.05, warmup_steps=0, lora=lora, context=100) as backend:
        await backend.update(Batch(0, await sample_batch(backend, 2, 1)), GRPO())
        await backend.publish()
        await backend.save(folder)


@pytest.mark.parametrize("lora", [None, LORA])
async def test_a_version_answers_by_its_own_weights(
    qwen: Path, tmp_path: Path, lora: LoraOptions | None
) -> None:
    await trained(qwen, tmp_path / "one", lora)
    backend = LocalBackend(qwen)  # never started
    old, new = await backend.open_engine(str(qwen), 0), await backend.open_engine(str(tmp_path / "one"), 1)
    try:
        assert old.upstream.model_name == new.upstream.model_name == "model"
        assert new.upstream._room(10, None) == 90  # the context it was trained with
        prompt, ids, logprobs, version = await greedy(new)
        assert version == 1
        await backend.export_version(str(tmp_path / "one"), tmp_path / "plain")
        network = AutoModelForCausalLM.from_pretrained(tmp_path / "plain", dtype=torch.float32)
        assert logprobs == pytest.approx(plain_logprobs(network, prompt, ids), abs=1e-4)
        before = await greedy(old)
        assert before[3] == 0
        assert before[1:3] != (ids, logprobs)
    finally:
        await old.close()
        await new.close()


async def test_adapters_that_the_model_would_not_take_are_no_version(qwen: Path, tmp_path: Path) -> None:
    await trained(qwen, tmp_path / "one", LORA)
    (file,) = (tmp_path / "one").rglob("adapter_model.safetensors")
    tensors = load_file(file)
    tensors["base_model.model.lm_head.lora_A.weight"] = torch.ones(2, 4)
    save_file(tensors, file)
    with pytest.raises(ModelError, match=r"lm_head\.lora_A\.weight' and 0 other tensors"):
        await LocalBackend(qwen).export_version(str(tmp_path / "one"), tmp_path / "plain")
    assert not (tmp_path / "plain").exists()


async def test_two_engines_of_one_version_do_not_sample_alike(qwen: Path) -> None:
    backend = LocalBackend(qwen)
    engines = [await backend.open_engine(str(qwen), 0) for _ in range(2)]
    said = []
    for opened in engines:
        generation = await opened.upstream.chat(ChatRequest(user("hello"), max_tokens=30))
        said.append([i async for delta in generation for i in delta.token_ids])
        await opened.close()
    assert said[0] != said[1]


@pytest.mark.parametrize("lora", [None, LORA])
async def test_what_moved_most_comes_first(qwen: Path, tmp_path: Path, lora: LoraOptions | None) -> None:
    await trained(qwen, tmp_path / "one", lora)
    backend = LocalBackend(qwen)
    changes = await backend.compare_versions(str(qwen), str(tmp_path / "one"))
    before = AutoModelForCausalLM.from_pretrained(qwen, dtype=torch.float32).state_dict()
    await backend.export_version(str(tmp_path / "one"), tmp_path / "plain")
    after = AutoModelForCausalLM.from_pretrained(tmp_path / "plain", dtype=torch.float32).state_dict()
    shares = {name: ((after[name] - w).norm() / w.norm()).item() for name, w in before.items()}
    assert {change.name: change.relative for change in changes} == pytest.approx(
        {name: shares[name] for name in shares if name != "lm_head.weight"}, abs=1e-6
    )
    moved = [change.relative or 0.0 for change in changes]
    assert moved == sorted(moved, reverse=True)
    assert moved[0] > 0.01
    assert all(c.relative == 0.0 for c in await backend.compare_versions(str(qwen), str(qwen)))


async def test_weights_that_can_not_be_reached_from_here_are_named(qwen: Path, tmp_path: Path) -> None:
    backend = LocalBackend(qwen)
    with pytest.raises(ModelError, match=r"no folder .*elsewhere.* on this machine"):
        await backend.open_engine(str(tmp_path / "elsewhere"), 3)
    (tmp_path / "broken" / "model").mkdir(parents=True)
    with pytest.raises(ModelError, match="broken"):
        await backend.open_engine(str(tmp_path / "broken"), 3)
    with pytest.raises(ModelError, match="broken"):
        await backend.compare_versions(str(qwen), str(tmp_path / "broken"))


async def test_versions_that_are_opened_at_once_all_answer(qwen: Path) -> None:
    """transformers makes a model without memory under a setting of the whole process."""
    backend = LocalBackend(qwen)
    opened = await asyncio.gather(*(backend.open_engine(str(qwen), version) for version in range(4)))
    try:
        answers = [await greedy(one) for one in opened]
    finally:
        for one in opened:
            await one.close()
    assert [answer[3] for answer in answers] == [0, 1, 2, 3]
    assert all(answer[1] == answers[0][1] for answer in answers)
