"""A model in one GGUF file becomes a transformers folder once, with the file's weights and tokenizer."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from benchmarks.shapes import write_gguf
from lightning_core.backends.weights.gguf import plain_template, smollm2_folder
from lightning_core.backends.weights.sources import check_folder, load_tokenizer
from lightning_core.errors import ModelError
from tests.backends.models import make_byte_fallback_tokenizer, make_network, make_tokenizer


def write(file: Path, without: str = "") -> torch.nn.Module:
    """A small Qwen3 as a file, perhaps without one of its tensors; returns the network."""
    pytest.importorskip("gguf")
    tokenizer = make_tokenizer()
    network: torch.nn.Module = make_network("qwen3", len(tokenizer), head_dim=128)  # transformers' default
    write_gguf(network, tokenizer, file, without)
    return network


def test_a_file_is_read_once_and_gives_the_same_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    network = write(tmp_path / "small.gguf")
    with caplog.at_level(logging.WARNING):
        folder = check_folder(tmp_path / "small.gguf")
    assert "small.gguf has no chat template" in caplog.text
    written = (folder / "model.safetensors").stat().st_mtime_ns
    assert check_folder(str(tmp_path / "small.gguf")) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == written
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.arange(5, 25)[None]
    with torch.no_grad():
        assert torch.allclose(loaded(ids).logits, network(ids).logits, atol=1e-4)
    tokenizer = load_tokenizer(str(folder))
    assert tokenizer.decode(tokenizer("the lazy dog")["input_ids"]) == "the lazy dog"


def test_a_file_that_is_not_there_or_broken_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(ModelError, match=r"none\.gguf.*give a GGUF file"):
        check_folder(tmp_path / "none.gguf")
    with pytest.raises(ModelError, match="no model folder 'smolm2'; did you mean 'smollm2'"):
        check_folder("smolm2")
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(ModelError, match=r"can't read .*broken\.gguf"):
        check_folder(tmp_path / "broken.gguf")
    assert not list((tmp_path / "cache").glob("*/*"))


def test_a_file_that_lacks_a_weight_is_refused_by_the_weights_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write(tmp_path / "part.gguf", without="model.layers.1.mlp.up_proj")
    with pytest.raises(
        ModelError, match=r"part\.gguf' lacks 1 of the weights .*'model\.layers\.1\.mlp\.up_proj\.weight'"
    ):
        check_folder(tmp_path / "part.gguf")
    assert not list((tmp_path / "cache").glob("*/*"))


@pytest.mark.parametrize("begins", [True, False])
def test_a_base_model_reads_a_conversation_as_plain_text(begins: bool) -> None:
    tokenizer = make_byte_fallback_tokenizer()
    tokenizer.add_bos_token = begins
    if begins:
        from tokenizers.processors import TemplateProcessing

        tokenizer.backend_tokenizer.post_processor = TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.chat_template = plain_template(tokenizer)
    turns = [("system", "Say. "), ("user", "a"), ("assistant", " b"), ("tool", "c")]
    messages = [{"role": role, "content": text} for role, text in turns]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == "<s>" * begins + "Say.\n\nUser: a\nAssistant: b\n\nTool: c\nAssistant:"


def test_a_cache_that_can_not_be_written_is_named_with_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ModelError, match="set XDG_CACHE_HOME to a folder that you may write"):
        smollm2_folder()
