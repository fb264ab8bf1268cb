"""A model that can't be used is refused with what, which and what to do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForImageTextToText, Qwen3_5ForConditionalGeneration

from lightning_core.backends.local import LocalBackend, tuning
from lightning_core.backends.local.model import load_model
from lightning_core.backends.machine import _container_limits
from lightning_core.backends.weights.sources import tiny_folder
from lightning_core.errors import ConfigError, ModelError
from tests.backends.models import make_tokenizer
from tests.backends.serving import ask, serving

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@pytest.fixture
def broken(qwen: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(qwen, tmp_path / "broken"))


@pytest.mark.parametrize(
    ("model", "meant"), [("smolm2", "smollm2"), ("SmolLM2", "smollm2"), ("tinny", "tiny")]
)
def test_a_misspelt_shipped_model_gets_the_name_that_was_meant(model: str, meant: str) -> None:
    with pytest.raises(ModelError, match=f"no model folder '{model}'; did you mean '{meant}'"):
        LocalBackend(model)


def test_a_folder_that_does_not_exist_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no model folder .*nowhere"):
        LocalBackend(tmp_path / "nowhere")


def test_a_folder_that_is_no_model_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config\.json"):
        LocalBackend(tmp_path)


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("model.safetensors", "weights"),
        ("tokenizer.json", "tokenizer"),
        ("chat_template.jinja", "no chat template"),
    ],
)
def test_a_folder_with_a_part_missing_is_refused_by_that_part(broken: Path, missing: str, said: str) -> None:
    (broken / missing).unlink()
    with pytest.raises(ModelError, match=f"(?s){said}") as raised:
        load_model(broken)
    assert str(broken) in str(raised.value)


def test_weights_that_are_damaged_are_refused(broken: Path) -> None:
    (broken / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(ModelError, match="can't read the weights"):
        load_model(broken)


def test_weights_of_which_one_is_missing_are_refused_by_its_name(broken: Path) -> None:
    """transformers would make up random numbers in its place."""
    weights = load_file(broken / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, broken / "model.safetensors", {"format": "pt"})
    with pytest.raises(
        ModelError, match=r"lacks 1 of the weights .*'model\.layers\.1\.mlp\.up_proj\.weight'"
    ):
        load_model(broken, device="cpu")


def test_models_that_are_loaded_at_once_are_all_whole(qwen: Path, llama: Path) -> None:
    folders = [qwen, llama] * 4
    with ThreadPoolExecutor(len(folders)) as pool:
        models = list(pool.map(lambda folder: load_model(folder, device="cpu"), folders))
    for folder, model in zip(folders, models, strict=True):
        alone = load_model(folder, device="cpu").network.state_dict()
        for name, weight in model.network.state_dict().items():
            assert torch.equal(weight, alone[name]), name


def test_a_context_beyond_the_models_is_refused(qwen: Path) -> None:
    with pytest.raises(ModelError, match=r"context=513 .* 2 to 512"):
        load_model(qwen, context=513)


def test_the_stop_tokens_are_found_in_config_tokenizer_and_template(broken: Path) -> None:
    (broken / "generation_config.json").write_text('{"eos_token_id": [0, 7]}')
    assert load_model(broken).stop_ids == {0, 2, 7}


@pytest.mark.parametrize("option", [{"dtype": "float8"}, {"max_batch": 0}, {"pack_tokens": 0}])
def test_an_option_out_of_range_is_named(qwen: Path, option: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(option))):
        LocalBackend(qwen, **option)  # type: ignore[arg-type]


async def test_the_shipped_model_is_served_by_its_name() -> None:
    assert (tiny_folder() / "config.json").is_file()
    async with serving("tiny") as backend:  # type: ignore[arg-type]
        assert backend.upstream.model_name == "tiny"


async def test_threads_are_chosen_by_measuring(qwen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    backend = LocalBackend(qwen)
    await backend.start()
    threads, _ = backend._started.speed
    assert 1 <= threads <= CORES
    await backend.close()


@pytest.mark.parametrize(("limit", "threads"), [("1", 1), ("1,4", 1), ("9999", CORES), ("", CORES)])
def test_a_large_model_takes_the_cores_that_omp_num_threads_leaves_it(
    qwen: Path, monkeypatch: pytest.MonkeyPatch, limit: str, threads: int
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", limit)
    monkeypatch.setattr(tuning, "SMALL", 0)
    model = load_model(str(qwen), device="cpu")
    assert tuning.tune_decoding(model, model.network, dtype="float32")[0] == threads


def test_the_memory_is_what_the_container_was_given(tmp_path: Path) -> None:
    assert min(_container_limits(tmp_path)) == 1 << 62  # no groups at all
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory.max").write_text("12345\n")  # cgroup v2
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("12345\n")  # v1
    assert min(_container_limits(tmp_path)) == 12345
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert min(_container_limits(tmp_path)) == 1 << 62


FREED = """
import re
import torch
from lightning_core.backends.local.model import load_model

def resident():
    return int(re.search(r"RssAnon:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024

load_model("tiny")
before, large, small = resident(), [], []
for _ in range(40):
    large.append(torch.ones(2 << 20))
    small.append(torch.ones(1 << 16))
    large[-1] = large[-1] + 1
used = resident() - before
large.clear()
print(used, resident() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_memory_of_freed_tensors_goes_back_to_the_system() -> None:
    said = subprocess.run([sys.executable, "-c", FREED], capture_output=True, text=True, check=True).stdout
    used, left = map(float, said.split())
    assert used > 300
    assert left < 150  # glibc keeps 64, and the small ones are there


def test_a_model_of_more_than_text_is_refused_by_its_family(tmp_path: Path) -> None:
    AutoConfig.for_model("gemma3n").save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="of the family 'gemma3n' is more than a text model"):
        load_model(tmp_path)


@pytest.mark.parametrize("named", ["as saved", "as in the network"])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", ["gemma3", "mistral3"])
async def test_a_checkpoint_of_text_and_images_is_served_by_its_text_part(
    tmp_path: Path, family: str, tied: bool, named: str
) -> None:
    tokenizer, made = make_tokenizer(), AutoConfig.for_model(family)
    small = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "initializer_range": 0.2}
    text = {"model_type": made.text_config.model_type, "num_key_value_heads": 1, "head_dim": 16}
    text |= {"num_hidden_layers": 2, "vocab_size": len(tokenizer), "max_position_embeddings": 256}
    images = {"model_type": made.vision_config.model_type, "image_size": 28, "patch_size": 14}
    config = type(made)(
        text_config=small | text,
        vision_config=small | images | {"num_hidden_layers": 1},
        tie_word_embeddings=tied,
    )
    torch.manual_seed(0)
    whole = AutoModelForImageTextToText.from_config(config).eval()
    whole.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    if named == "as in the network":  # older checkpoints have either
        weights = {n: w for n, w in whole.state_dict().items() if not (tied and n == "lm_head.weight")}
        save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    async with serving(tmp_path) as backend:
        assert backend._started.policy.base.config.model_type == config.text_config.model_type
        reply = await ask(backend, "fox", max_tokens=6)
    ids = torch.tensor([[*reply.prompt_ids, *reply.ids]])
    with torch.no_grad():
        wanted = whole(input_ids=ids).logits[0, :-1].log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
    assert reply.logprobs == pytest.approx(wanted[-len(reply.ids) :].tolist(), abs=1e-4)


def test_of_a_qwen3_5_with_a_part_for_images_the_text_part_is_loaded(tmp_path: Path) -> None:
    config = AutoConfig.for_model("qwen3_5")
    small = {"hidden_size": 32, "intermediate_size": 64}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
    linear = {"linear_num_key_heads": 2, "linear_num_value_heads": 2}
    kinds = ["linear_attention", "full_attention"]
    for part, values in (
        (config.text_config, {**small, **heads, **linear, "num_hidden_layers": 2, "layer_types": kinds}),
        (config.vision_config, {**small, "depth": 1, "num_heads": 2, "out_hidden_size": 32}),
    ):
        for name, value in values.items():
            setattr(part, name, value)
    tokenizer = make_tokenizer()
    config.text_config.vocab_size = len(tokenizer)
    whole = Qwen3_5ForConditionalGeneration(config).eval()
    whole.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    text = load_model(tmp_path, device="cpu").network
    ids = torch.arange(5, 25)[None]
    with torch.no_grad():
        assert torch.equal(text(ids).logits, whole(input_ids=ids).logits)
