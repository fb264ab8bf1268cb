"""Models with random weights in the shape of the shipped one: speed does not depend on what they say."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

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
