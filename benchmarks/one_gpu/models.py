"""Networks with random weights in the shapes of published models: speed does not depend on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from lightning_core.backends.local.model import load_model, make_ready
from lightning_core.backends.weights.model import Model
from lightning_core.backends.weights.sources import find_source, load_tokenizer

SHIPPED = "tiny"
QWEN3: Mapping[str, Any] = {
    "model_type": "qwen3",
    "vocab_size": 151_936,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
}
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "135M": {  # https://huggingface.co/HuggingFaceTB/SmolLM2-135M/blob/main/config.json
        "model_type": "llama",
        "vocab_size": 49_152,
        "hidden_size": 576,
        "intermediate_size": 1_536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
    },
    # https://huggingface.co/Qwen/Qwen3-0.6B/blob/main/config.json
    "0.6B": {**QWEN3, "hidden_size": 1_024, "intermediate_size": 3_072},
    # https://huggingface.co/Qwen/Qwen3-1.7B/blob/main/config.json
    "1.7B": {**QWEN3, "hidden_size": 2_048, "intermediate_size": 6_144},
    "small": {  # large enough for everything that a GPU does with large ones
        **QWEN3,
        "vocab_size": 2_048,
        "hidden_size": 512,
        "intermediate_size": 1_408,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 64,
    },
    "least": {
        **QWEN3,
        "vocab_size": 2_048,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
    },
}
CONTEXT = 1 << 17
"""Positions of these networks."""


@dataclass(frozen=True, slots=True)
class Where:
    """The device and the number format of a measurement."""

    device: torch.device
    quick: bool
    """Whether little work on the shipped model is enough."""

    @property
    def models(self) -> tuple[str, ...]:
        return (SHIPPED,) if self.quick else ("135M", "0.6B", "1.7B")

    @property
    def checked(self) -> str:
        """The shape that checks run."""
        return "least" if self.quick else "small"

    def synchronise(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def random_network(shape: str, device: torch.device) -> PreTrainedModel:
    """float32 weights, made on the device."""
    own = dict(SHAPES[shape])
    config = AutoConfig.for_model(
        own.pop("model_type"),
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
        **own,
    )
    torch.manual_seed(0)
    with torch.device(device):
        network: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    return network.eval()


def open_model(name: str, where: Where, context: int = 4_096) -> Model:
    """Ready to serve and to train; it stops at no token, so that all replies have as many."""
    if name == SHIPPED:
        model = load_model(SHIPPED, device=str(where.device))
        return Model(model.name, model.network, model.tokenizer, model.context, frozenset())
    network = random_network(name, where.device)
    make_ready(network, where.device)
    return Model(name, network, load_tokenizer(find_source(SHIPPED)[0]), context, frozenset())
