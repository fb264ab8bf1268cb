"""Models with random weights in the shape of the shipped one: speed does not depend on what they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

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
