"""The models that fit on one card by the dry run's estimate: `python -m benchmarks.one_gpu.plans` prints the
table of docs/one-gpu.md. It needs no card."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.one_gpu.models import CONTEXT, QWEN3, SHAPES
from lightning_core.algorithms.policy_gradient import GRPO
from lightning_core.backends.local.preflight import Card, estimate
from lightning_core.backends.local.versions import LocalSettings
from lightning_core.backends.settings import LoraOptions
from lightning_core.backends.weights.sizes import measure

CARDS = (16, 24, 48, 80)
"""GB of memory, as they are sold."""
SHARE = 0.98
"""The share of a card's memory that its driver leaves."""
LARGE: Mapping[str, Any] = {**QWEN3, "num_hidden_layers": 36, "num_attention_heads": 32}
MODELS: Mapping[str, Mapping[str, Any]] = {
    "SmolLM2-135M": SHAPES["135M"],
    "Qwen3-0.6B": SHAPES["0.6B"],
    "Qwen3-1.7B": SHAPES["1.7B"],
    "Qwen3-4B": {**LARGE, "hidden_size": 2_560, "intermediate_size": 9_728},
    "Qwen3-8B": {**LARGE, "hidden_size": 4_096, "intermediate_size": 12_288, "tie_word_embeddings": False},
}
TRAINED: Mapping[str, Mapping[str, Any]] = {
    "all weights": {},
    "all weights, moments in 8 bits": {"optimizer": "adamw_8bit"},
    "LoRA": {"lora": LoraOptions()},
    "LoRA on 4 bits": {"lora": LoraOptions(load_in_4bit=True)},
}
LENGTHS = (32_768, 16_384, 8_192, 4_096, 2_048)


def longest_context(folder: Path, options: Mapping[str, Any], gigabytes: int) -> int | None:
    """The longest of a few lengths whose update fits, beside an engine of 64 replies; None if none does."""
    card = Card(torch.device("cuda"), int(gigabytes * SHARE * (1 << 30)))
    for context in LENGTHS:
        settings = LocalSettings(folder, **options, context=context, pack_tokens=context)
        if not estimate(settings, measure(folder, context), [GRPO()], card).missing:
            return context
    return None


def lines() -> Iterator[str]:
    """The table, as Markdown."""
    yield "| model | trained | " + " | ".join(f"{size} GB" for size in CARDS) + " |"
    yield "|---|---|" + "---:|" * len(CARDS)
    with tempfile.TemporaryDirectory() as name:
        for model, shape in MODELS.items():
            folder = Path(name) / model
            folder.mkdir()
            config = {"max_position_embeddings": CONTEXT, "tie_word_embeddings": True, **shape}
            (folder / "config.json").write_text(json.dumps(config))
            for kind, options in TRAINED.items():
                found = [longest_context(folder, options, size) for size in CARDS]
                cells = " | ".join("–" if each is None else f"{each:,}" for each in found)
                yield f"| {model} | {kind} | {cells} |"


if __name__ == "__main__":
    print("\n".join(lines()))
