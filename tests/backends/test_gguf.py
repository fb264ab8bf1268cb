"""A model in one GGUF file becomes a transformers folder once, with the file's weights and tokenizer."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from lightning_core.backends.weights.gguf import plain_template, smollm2_folder
from lightning_core.backends.weights.sources import check_folder, load_tokenizer
from lightning_core.errors import ModelError
from tests.backends.models import make_byte_fallback_tokenizer, make_network, make_tokenizer

PLACES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""A tensor's name with transformers, and in the file."""


def write(file: Path, without: str = "") -> torch.nn.Module:
    """A small Qwen3 as a file, perhaps without one of its tensors; returns the network."""
    gguf = pytest.importorskip("gguf")
    tokenizer = make_tokenizer()
    network: Any = make_network("qwen3", len(tokenizer), head_dim=128)  # what transformers takes for granted
    config, model = network.config, json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    writer = gguf.GGUFWriter(str(file), "qwen3")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(len(tokenizer))
    tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    special = set(tokenizer.all_special_tokens)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in special else 1 for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
    writer.add_eos_token_id(tokenizer.eos_token_id)
    for name, weight in network.state_dict().items():
        inner = name.removesuffix(".weight")
        if inner in ("lm_head", without):
            continue
        _, _, layer = inner.partition("model.layers.")
        number, _, part = layer.partition(".")
        place = f"blk.{number}.{PLACES[part]}" if layer else PLACES[inner]
        writer.add_tensor(f"{place}.weight", weight.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
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
