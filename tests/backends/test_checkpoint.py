"""Checkpoints go on exactly, appear whole, and are ordinary transformers folders."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from lightning_core.backends.base import Batch
from lightning_core.backends.settings import LoraOptions
from lightning_core.backends.weights.folders import write_weights
from lightning_core.backends.weights.versions import Content, export_version
from lightning_core.errors import ConfigError, ModelError
from tests.backends.serving import ask, sample_batch, serving
from tests.backends.test_update import Reinforce


@pytest.mark.parametrize("lora", [None, LoraOptions(rank=4)])
async def test_going_on_from_a_checkpoint_equals_never_having_stopped(
    folder: Path, tmp_path: Path, lora: LoraOptions | None
) -> None:
    async with serving(folder, lora=lora, learning_rate=1e-2) as backend:
        batch = await sample_batch(backend)
        for step in range(2):
            await backend.update(Batch(step, batch), Reinforce())
            await backend.publish()
        await backend.save(tmp_path / "checkpoint")
        wanted = await ask(backend, "fox", max_tokens=12, origin="1")
        second = await sample_batch(backend)
        metrics = await backend.update(Batch(2, second), Reinforce())
        weights = {n: w.clone() for n, w in backend._started.policy.network.state_dict().items()}
    async with serving(folder, lora=lora, learning_rate=1e-2, seed=99) as backend:
        await backend.load(tmp_path / "checkpoint")
        assert backend.policy_version == 2
        reply = await ask(backend, "fox", max_tokens=12, origin="1")
        assert (reply.ids, reply.logprobs) == (wanted.ids, pytest.approx(wanted.logprobs, abs=1e-5))
        assert reply.policy_version == 2
        again = await backend.update(Batch(2, second), Reinforce())
        assert (again["loss"], again["grad_norm"]) == (metrics["loss"], metrics["grad_norm"])
        for name, weight in backend._started.policy.network.state_dict().items():
            assert torch.equal(weight, weights[name]), name


@pytest.mark.parametrize("lora", [None, LoraOptions(rank=4)])
async def test_the_model_in_a_checkpoint_is_a_transformers_folder(
    folder: Path, tmp_path: Path, lora: LoraOptions | None
) -> None:
    async with serving(folder, lora=lora, learning_rate=1e-2) as backend:
        await backend.update(Batch(0, await sample_batch(backend)), Reinforce())
        await backend.publish()
        await backend.save(tmp_path / "checkpoint")
        reply = await ask(backend, "fox", max_tokens=6, seed=1)
    network = AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint" / "model", dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "checkpoint" / "model")
    assert tokenizer.chat_template
    with torch.no_grad():
        logits = network.eval()(torch.tensor([reply.prompt_ids + reply.ids])).logits[0].log_softmax(-1)
    at = len(reply.prompt_ids) - 1
    wanted = [float(logits[at + k, token]) for k, token in enumerate(reply.ids)]
    assert reply.logprobs == pytest.approx(wanted, abs=1e-4)


async def test_a_trained_model_can_be_served_from_its_checkpoint(qwen: Path, tmp_path: Path) -> None:
    async with serving(qwen) as backend:
        await backend.save(tmp_path / "checkpoint")
        wanted = await ask(backend, "fox", max_tokens=6, temperature=0.0)
    async with serving(tmp_path / "checkpoint" / "model") as backend:
        assert (await ask(backend, "fox", max_tokens=6, temperature=0.0)).ids == wanted.ids


@pytest.mark.parametrize("lora", [None, LoraOptions(rank=4)])
async def test_an_exported_policy_says_where_a_reply_ended_in_training_and_how_it_was_sampled(
    qwen: Path, tmp_path: Path, lora: LoraOptions | None
) -> None:
    base = Path(shutil.copytree(qwen, tmp_path / "base"))
    (base / "generation_config.json").write_text(
        '{"eos_token_id": [0, 7], "temperature": 0.6, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.1}'
    )
    async with serving(base, lora=lora) as backend:
        await backend.export(tmp_path / "policy")
        await backend.save(tmp_path / "checkpoint")
        prompt = (await ask(backend, "fox", max_tokens=2)).prompt_ids
    export_version(Content(str(tmp_path / "checkpoint"), str(base)), tmp_path / "version")
    for folder in (tmp_path / "policy", tmp_path / "version"):
        network = AutoModelForCausalLM.from_pretrained(folder)
        said = network.generation_config
        assert set(said.eos_token_id) == set(network.config.eos_token_id) == {0, 2, 7}
        assert (said.temperature, said.top_k, said.top_p, said.repetition_penalty) == (1.0, 0, 1.0, None)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        assert tokenizer.chat_template == AutoTokenizer.from_pretrained(base).chat_template
        with torch.no_grad():  # every token is as likely: a reply ends at one of the three
            network.get_output_embeddings().weight.zero_()
        torch.manual_seed(0)
        reply = network.generate(torch.tensor([prompt]), max_new_tokens=400)[0, len(prompt) :].tolist()
        assert len(reply) < 400
        assert [token in {0, 2, 7} for token in reply].index(True) == len(reply) - 1


async def test_a_save_replaces_the_older_one_and_leaves_nothing_behind(qwen: Path, tmp_path: Path) -> None:
    (tmp_path / ".checkpoint.dead.partial").mkdir()  # by a process that was killed while it saved
    async with serving(qwen) as backend:
        for _ in range(3):
            await backend.save(tmp_path / "checkpoint")
    assert os.listdir(tmp_path) == ["checkpoint"]


async def test_a_save_that_fails_says_so_and_leaves_the_older_one(qwen: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    async with serving(qwen) as backend:
        with pytest.raises(ModelError, match=r"can't write model folder"):
            await backend.save(tmp_path / "file" / "checkpoint")
    assert os.listdir(tmp_path) == ["file"]


async def test_a_folder_that_is_no_checkpoint_of_this_model_is_refused(
    qwen: Path, llama: Path, tmp_path: Path
) -> None:
    async with serving(qwen) as backend:
        await backend.save(tmp_path / "qwen")
        with pytest.raises(ModelError, match=r"can't go on from checkpoint .*nowhere"):
            await backend.load(tmp_path / "nowhere")
        assert (await ask(backend, "still served", max_tokens=2)).policy_version == 0
        shutil.copytree(tmp_path / "qwen", tmp_path / "torn")
        (tmp_path / "torn" / "moments.safetensors").write_bytes(b"")
        with pytest.raises(ModelError, match="torn"):
            await backend.load(tmp_path / "torn")
    async with serving(llama) as backend:
        with pytest.raises(ModelError, match=r"don't fit|size mismatch"):
            await backend.load(tmp_path / "qwen")


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (LoraOptions(rank=4, alpha=8.0), r"lora_alpha is 32\.0, that of this run is 8\.0"),
        (LoraOptions(rank=8), "r is 4, that of this run is 8"),
        (LoraOptions(rank=4, targets=("q_proj",)), r"target_modules is .* is \['q_proj'\]"),
    ],
)
async def test_a_checkpoint_of_other_lora_options_is_not_gone_on_from(
    qwen: Path, tmp_path: Path, other: LoraOptions, said: str
) -> None:
    async with serving(qwen, lora=LoraOptions(rank=4)) as backend:
        await backend.save(tmp_path / "step")
    async with serving(qwen, lora=other) as backend:
        with pytest.raises(ModelError, match=f"{said}.*the same lora options"):
            await backend.load(tmp_path / "step")


async def test_a_disk_that_refuses_leaves_the_checkpoint_before_as_it_was(qwen: Path, tmp_path: Path) -> None:
    async with serving(qwen) as backend:
        await backend.save(tmp_path / "step")
        before = {file: file.stat() for file in (tmp_path / "step").rglob("*")}
        least, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, most))  # Python ignores the signal
        try:
            with pytest.raises(ModelError, match=r"can't write model folder .*free some space"):
                await backend.save(tmp_path / "step")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (least, most))
    assert {file: file.stat() for file in (tmp_path / "step").rglob("*")} == before
    assert os.listdir(tmp_path) == ["step"]


async def test_what_needs_a_started_backend_says_so(qwen: Path) -> None:
    from lightning_core.backends.local import LocalBackend

    with pytest.raises(ConfigError, match=r"await backend\.start\(\) first"):
        _ = LocalBackend(qwen).upstream


@pytest.mark.parametrize("file", ["model/model.safetensors", "moments.safetensors"])
async def test_a_checkpoint_that_is_not_finite_is_not_gone_on_from(
    qwen: Path, tmp_path: Path, file: str
) -> None:
    async with serving(qwen) as backend:
        await backend.update(Batch(0, await sample_batch(backend)), Reinforce())
        await backend.save(tmp_path / "step-000001")
        tensors = load_file(tmp_path / "step-000001" / file)
        name = next(name for name, tensor in tensors.items() if tensor.ndim)
        tensors[name].view(-1)[0] = float("nan")
        save_file(tensors, tmp_path / "step-000001" / file, {"format": "pt"})
        with pytest.raises(ModelError, match=r"step-000001.* is not finite .*delete the folder"):
            await backend.load(tmp_path / "step-000001")


def test_verl_s_weights_in_shards_are_read_as_one_model(folder: Path, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.config.save_pretrained(tmp_path)
    tied = bool(model.config.tie_word_embeddings)
    write_weights(tmp_path, model.state_dict().items(), tied=tied, shard_bytes=50_000)
    assert len(list(tmp_path.glob("model-*-of-*.safetensors"))) > 2
    again = AutoModelForCausalLM.from_pretrained(tmp_path).state_dict()
    assert {name: tensor.tolist() for name, tensor in again.items()} == {
        name: tensor.tolist() for name, tensor in model.state_dict().items()
    }


def test_verl_s_weights_that_are_not_finite_are_gone_through_and_not_written(tmp_path: Path) -> None:
    seen = []

    def tensors() -> Iterator[tuple[str, torch.Tensor]]:
        for name, value in (("a", 1.0), ("b", float("inf")), ("c", 2.0)):
            seen.append(name)  # all workers take part in giving each tensor
            yield name, torch.full((2,), value)

    with pytest.raises(ModelError, match="1 tensors are not finite, 'b' the first"):
        write_weights(tmp_path / "model", tensors(), tied=False)
    assert seen == ["a", "b", "c"]
    assert not list((tmp_path / "model").glob("model*.safetensors"))
