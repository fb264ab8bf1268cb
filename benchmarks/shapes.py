"""Models with random weights in the shape of the shipped one: speed does not depend on what they say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen3Config,
    Qwen3ForCausalLM,
)

VOCABULARY = 1024


def random_qwen3(
    folder: Path | None = None, *, hidden: int = 192, layers: int = 3, vocabulary: int = VOCABULARY
) -> PreTrainedModel:
    """A Qwen3 architecture of about 1.5 M parameters, evaluation mode; saved to `folder` if one is given."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=hidden * 8 // 3,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 32,
        num_key_value_heads=hidden // 96,
        head_dim=32,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        eos_token_id=None,
        bos_token_id=None,
        pad_token_id=0,
    )
    network: PreTrainedModel = Qwen3ForCausalLM(config).eval()
    if folder is not None and not (folder / "config.json").exists():
        network.save_pretrained(folder)
    return network


_PLACES: Final = {
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
"""A tensor's name with transformers, and in a GGUF file."""


def write_gguf(network: Any, tokenizer: PreTrainedTokenizerBase, file: Path, without: str = "") -> None:
    """Write a Qwen3 with tied embeddings as a GGUF file of float32, perhaps without one of its tensors.

    Names and keys are those of the GGUF specification.
    """
    import gguf

    config, model = network.config, json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    writer = gguf.GGUFWriter(str(file), "qwen3")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(len(tokenizer))
    tokens = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
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
        place = f"blk.{number}.{_PLACES[part]}" if layer else _PLACES[inner]
        writer.add_tensor(f"{place}.weight", weight.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


STATE_FAMILIES = ("qwen3_5_text", "lfm2", "falcon_h1")
"""Families that keep state outside attention: linear attention, convolution, state space."""


def random_state_network(family: str, *, hidden: int, layers: int) -> PreTrainedModel:
    """A network of a family of `STATE_FAMILIES`, evaluation mode; a fourth of its layers have attention, of
    Falcon-H1 all."""
    torch.manual_seed(0)
    heads = hidden // 32
    linear: dict[str, Any] = {f"linear_num_{each}_heads": heads // 2 for each in ("key", "value")}
    linear |= {f"linear_{each}_head_dim": 64 for each in ("key", "value")}
    of_state = ["conv" if family == "lfm2" else "linear_attention"] * 3 + ["full_attention"]
    own: dict[str, dict[str, Any]] = {
        "qwen3_5_text": linear | {"layer_types": of_state * (layers // 4)},
        "lfm2": {"layer_types": of_state * (layers // 4), "block_auto_adjust_ff_dim": False},
        "falcon_h1": {"mamba_d_ssm": hidden, "mamba_n_heads": heads, "mamba_d_head": 32, "mamba_d_state": 64},
    }
    config = AutoConfig.for_model(
        family,
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=hidden * 8 // 3,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        head_dim=32,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        eos_token_id=None,
        bos_token_id=None,
        pad_token_id=0,
        **own[family],
    )
    network: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    return network.eval()
